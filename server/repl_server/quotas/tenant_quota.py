"""`TenantQuota`: what one tenant may use; and as it is said in lines, as `sessions=8`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

_MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantQuota:
    """What one tenant may use at a time or in an hour; None is no limit.

    Args:
        sessions: open at once, those in their grace time among them.
        steps_per_second: taken on average; ten times as many in a burst.
        requests_per_second: of any kind, likewise.
        cpu_seconds_per_hour: of all sessions' processes.
        calls_per_hour: sub-calls of all sessions.
        uploaded_bytes: of contexts kept, as they were sent and as sessions have them: a text of
            100 MB takes that once, and once more while sessions begin with it. The default is
            enough for one of the largest.
        connections: sockets and requests at once.

    Raises:
        TypeError, ValueError: naming the field that is no number from 0.
    """

    sessions: int | None = None
    steps_per_second: float | None = None
    requests_per_second: float | None = None
    cpu_seconds_per_hour: float | None = None
    calls_per_hour: int | None = None
    uploaded_bytes: int | None = 2560 * _MIB
    connections: int | None = None

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise TypeError(f"{each.name} must be a number, not {type(value).__name__}")
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{each.name} must be a number from 0, not {value}")


# Strangers who are told apart by nothing but their addresses.
ADDRESS_QUOTA = TenantQuota(
    sessions=8,
    steps_per_second=50,
    requests_per_second=200,
    cpu_seconds_per_hour=1800,
    calls_per_hour=500,
    uploaded_bytes=512 * _MIB,
    connections=32,
)


def parse_quota(lines: Sequence[str], *, strangers: bool) -> TenantQuota | None:
    """The quota of these lines, None for none.

    What is not named stays as it is without any: for strangers, limited.

    Raises:
        ValueError: naming the line.
    """
    if not lines:
        return None
    counted = _counted(_named(lines))
    try:
        return replace(ADDRESS_QUOTA if strangers else TenantQuota(), **counted)
    except ValueError as error:
        raise ValueError(f"--quota: {error}") from None


def _named(lines: Sequence[str]) -> dict[str, str]:
    if wrong := [each for each in lines if not each.partition("=")[2]]:
        raise ValueError(f"--quota: {wrong[0]!r} is not NAME=VALUE, as sessions=8")
    return dict(each.partition("=")[::2] for each in lines)


def _counted(named: Mapping[str, str]) -> dict[str, Any]:
    kinds = {
        field.name: int if "int" in str(field.type) else float for field in fields(TenantQuota)
    }
    if unknown := named.keys() - kinds.keys():
        raise ValueError(f"--quota: {min(unknown)!r} is none of {', '.join(kinds)}")
    counted: dict[str, Any] = {}
    for name, text in named.items():
        try:
            counted[name] = kinds[name](text)
        except ValueError:
            whole = "a whole number" if kinds[name] is int else "a number"
            raise ValueError(f"--quota {name} must be {whole}, not {text!r}") from None
    return counted
