"""`Unmetered`: the meter of owners without quotas, and what a meter is asked."""

from __future__ import annotations

from typing import Protocol

from .owners import Owner


class Meter(Protocol):
    """What one owner has used; methods raise `Refusal` for what would be too much."""

    def request(self) -> None:
        """Count a request of any kind."""

    def step(self) -> None:
        """Count a step."""

    def spend_cpu(self, seconds: float) -> None:
        """Book CPU time that was used."""

    def open_session(self) -> None:
        """Count a session from now on."""

    def close_session(self) -> None:
        """The session is gone."""

    def reserve_calls(self, wanted: int) -> int:
        """Take up to `wanted` sub-calls; returns how many."""

    def return_calls(self, count: int) -> None:
        """Give back sub-calls that were reserved and not made."""


class Unmetered:
    """Counts nothing."""

    def of(self, owner: Owner) -> Meter:
        """The meter of `owner`."""
        return self

    def request(self) -> None:
        """As `Meter.request`."""

    def step(self) -> None:
        """As `Meter.step`."""

    def spend_cpu(self, seconds: float) -> None:
        """As `Meter.spend_cpu`."""

    def open_session(self) -> None:
        """As `Meter.open_session`."""

    def close_session(self) -> None:
        """As `Meter.close_session`."""

    def reserve_calls(self, wanted: int) -> int:
        """As `Meter.reserve_calls`: all of them."""
        return wanted

    def return_calls(self, count: int) -> None:
        """As `Meter.return_calls`."""
