"""A fork bomb of daemons beside an ordinary session: delays of both."""

from __future__ import annotations

import statistics
import threading
import time
from dataclasses import dataclass
from typing import Any

from repl_sandbox import Sandbox, Session
from tests.security.attacks.fork_bombs import HEAD, STORMS

# Seconds of a fork bomb's cell, and between the steps of its neighbour.
_TIMEOUT, _PAUSE = 5.0, 0.005
# Times as late as in a quiet session that a time-out may be answered, and seconds on top.
_LATER, _ON_TOP = 5, 1.0
# Times as slow as alone that the p99 of a neighbour may be. A wait of less than so many seconds is
# the scheduler's and says nothing.
_SLOWER, _LEAST = 10, 0.002


@dataclass(frozen=True, slots=True)
class Storm:
    """Result of a fork bomb; times in seconds."""

    outcome: str
    named: bool  # whether the limit of processes was
    quiet_late: float
    late: float
    alone: float  # p99 of the neighbour's steps
    beside: float

    def told(self) -> dict[str, Any]:
        """A row of the table, times in milliseconds."""
        return {
            "outcome": self.outcome,
            "limit named": self.named,
            "time-out late ms, quiet": round(self.quiet_late * 1e3, 1),
            "time-out late ms, storm": round(self.late * 1e3, 1),
            "time-out late ratio": round(self.late / self.quiet_late, 1),
            "neighbour p99 ms, alone": round(self.alone * 1e3, 2),
            "neighbour p99 ms, storm": round(self.beside * 1e3, 2),
            "neighbour p99 ratio": round(self.beside / self.alone, 1),
        }

    def faults(self) -> list[str]:
        """Return a description of each violated limit."""
        found = []
        if not self.named:
            found.append(f"storm: the limit of processes was not named: {self}")
        if self.late > _LATER * self.quiet_late + _ON_TOP:
            found.append(f"storm: the time-out came late: {self}")
        if self.beside > _SLOWER * max(self.alone, _LEAST):
            found.append(f"storm: its neighbour was slow: {self}")
        return found


def storm(sandbox: Sandbox, name: str = "daemons") -> Storm:
    """Let one loose in a session of `sandbox`."""
    with sandbox.session() as quiet, sandbox.session() as neighbour, sandbox.session() as session:
        for each in (quiet, neighbour, session):
            each.run("x = 1")
        alone = _Stepper(neighbour)
        _, quiet_late = _late(quiet, "while True: pass", 1.0)
        alone_p99 = alone.p99(_TIMEOUT)
        beside = _Stepper(neighbour)
        outcome, late = _late(session, HEAD + STORMS[name], _TIMEOUT)
        named = "processes" in (*outcome.limits, getattr(outcome, "reason", ""))
        return Storm(
            type(outcome).__name__, named, quiet_late, late, alone_p99, beside.p99(_TIMEOUT)
        )


def _late(session: Session, code: str, timeout: float) -> tuple[Any, float]:
    begun = time.monotonic()
    outcome = session.run(code, timeout=timeout)
    return outcome, max(1e-3, time.monotonic() - begun - timeout)


class _Stepper:
    """Takes short steps of a session until it is asked how long they took."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._begun = time.monotonic()
        self._times: list[float] = []
        self._stops = threading.Event()
        self._thread = threading.Thread(target=self._step)
        self._thread.start()

    def p99(self, seconds: float) -> float:
        """The steps of the neighbour, once the fork bomb has gone on for a while."""
        time.sleep(max(0.0, self._begun + seconds - time.monotonic()))
        self._stops.set()
        self._thread.join()
        return statistics.quantiles(self._times, n=100)[98]

    def _step(self) -> None:
        while not self._stops.wait(_PAUSE):
            begun = time.monotonic()
            self._session.run("x += 1")
            self._times.append(time.monotonic() - begun)
