"""The steps of checks: what is done with a session, and what must come of it.

Everything is exact unless it is written as `Like` (a regular expression for the whole text) or as
several outcomes, any of which will do.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

from repl_sandbox.types import (
    JSON,
    Answers,
    Clock,
    Finished,
    Killed,
    KillReason,
    Limits,
    Outcome,
    Raised,
    State,
    TimedOut,
)


@dataclass(frozen=True, slots=True)
class Like:
    """Text that the regular expression matches from end to end (dots match newlines)."""

    pattern: str

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and re.fullmatch(self.pattern, other, re.DOTALL) is not None


Text: TypeAlias = "str | Like | None"
ANY: Final = Like(".*")


@dataclass(frozen=True, slots=True)
class Expect:
    """An outcome. Fields that are not given must be empty; `answers` are (form, text, value)."""

    kind: type[Outcome] = Finished
    value: Text = None
    stdout: Text = ""
    stderr: Text = ""
    error: tuple[Text, Text] | None = None  # type and message
    line: int | None = None
    traceback: Text = ANY
    changes: tuple[tuple[str, str], ...] | None = None  # kind and name; None: whatever they are
    answers: tuple[tuple[str, str, JSON], ...] = ()
    states: tuple[State, ...] = ("kept",)
    clock: Clock | None = None
    reason: KillReason | None = None


def shows(value: Text = None, stdout: Text = "", stderr: Text = "", **more: Any) -> Expect:
    """A cell that runs to its end."""
    return Expect(Finished, value, stdout, stderr, **more)


def raises(kind: Text, message: Text = "", line: int | None = 1, **more: Any) -> Expect:
    """A cell that raises on its line `line`."""
    return Expect(Raised, error=(kind, message), line=line, **more)


# A worker that is gone leaves an empty session, or one that went back to before the cell.
LOST: Final[tuple[State, ...]] = ("restarted", "rolled_back")


def killed(reason: KillReason, stdout: Text = "", stderr: Text = "") -> Expect:
    """A cell whose process is gone."""
    return Expect(Killed, stdout=stdout, stderr=stderr, states=LOST, reason=reason)


def timed_out(clock: Clock = "execution", *, states: tuple[State, ...] = ("kept",)) -> Expect:
    """A cell that a clock stopped; it was interrupted if its state is kept."""
    error = ("KeyboardInterrupt", "") if states == ("kept",) else None
    return Expect(TimedOut, error=error, line=None, states=states, clock=clock, stderr=ANY)


# ── steps ─────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Run:
    """Run a cell. One of the outcomes must be it.

    `interrupt`: call `Session.interrupt` when this text has been printed.
    """

    code: str
    outcomes: Expect | tuple[Expect, ...] = Expect()
    timeout: float | None = None
    interrupt: str | None = None


@dataclass(frozen=True, slots=True)
class Put:
    """`Session.set`; it raises `error` if that is given."""

    name: str
    value: str | bytes | JSON
    error: type[Exception] | None = None


@dataclass(frozen=True, slots=True)
class Fetch:
    """`Session.get` returns `value`, or raises `error`."""

    name: str
    value: JSON = None
    error: type[Exception] | None = None


@dataclass(frozen=True, slots=True)
class Variables:
    """`Session.variables` lists these (name, type), in this order."""

    rows: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Fresh:
    """Open another session; the steps that follow are about it. The former stays open."""


@dataclass(frozen=True, slots=True)
class Close:
    """Close the session; then each use of it raises SessionClosed, except another close."""


# The session answers: after whatever went before.
AGAIN: Final = Run("6 * 7", shows("42"))
# Features that a check needs and a backend may lack.
PROCESSES: Final = frozenset({"processes"})

# Of `Limits`, in seconds.
_CLOCKS: Final = ("timeout", "grace", "host_timeout")

Step: TypeAlias = Run | Put | Fetch | Variables | Fresh | Close


@dataclass(frozen=True, slots=True)
class Check:
    """One promise. `host`: offer the runner's functions of the host. `needs`: what a backend may
    lack: "processes" (starting programs) or "isolation". `not_for`: tiers that do not promise this,
    each with the reason.
    """

    name: str
    group: str
    steps: tuple[Step, ...]
    host: bool = False
    answers: Answers | None = None
    limits: Limits = field(default_factory=lambda: Limits(timeout=60))
    needs: frozenset[str] = frozenset()
    not_for: Mapping[str, str] = field(default_factory=dict)

    def slower(self, times: float) -> Check:
        """The same with so many times the seconds."""
        steps = tuple(
            replace(step, timeout=step.timeout * times)
            if isinstance(step, Run) and step.timeout is not None
            else step
            for step in self.steps
        )
        clocks = {name: getattr(self.limits, name) * times for name in _CLOCKS}
        return replace(self, steps=steps, limits=replace(self.limits, **clocks))


def limited(
    name: str,
    group: str,
    *steps: Step,
    host: bool = False,
    needs: frozenset[str] = frozenset(),
    **limits: Any,
) -> Check:
    """A check whose sessions have these limits, and a minute for each cell by default."""
    bounds = Limits(**{"timeout": 60.0, "grace": 0.3, **limits})
    return Check(name, group, steps, host=host, needs=needs, limits=bounds)
