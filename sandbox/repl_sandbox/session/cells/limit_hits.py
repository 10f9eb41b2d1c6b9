"""`LimitHits`: the limits that the kernel has enforced on a session while a cell ran."""

from __future__ import annotations

from dataclasses import replace

from ...types import AnyOutcome, Finished, KillReason
from ...zygote.client.session_links import SessionLinks
from .running_cell import RunningCell

# The kernel's counts take microseconds to read. No process is made, filled and ended for its memory
# in less than this; what a shorter cell leaves is in the counts when the next is looked at.
_WORTH_A_LOOK = 0.002
# Nor in less than this, by a worker that used no more CPU time than that: it did nothing else, and
# the host, which has others to serve, was late to take in what it said.
_LATE = 0.02
_WORTH_A_LOOK_OF_CPU = 0.00025
# And what it takes a small session to be copied, which a cell that follows at once has among what
# it used: with that, one that runs a program has 0.75 ms and more.
_OF_A_COPY = 0.0005


class LimitHits:
    """Those of the cell that runs. `full`: all processes were there that may be."""

    def __init__(self, links: SessionLinks, cell: RunningCell, *, copies: bool) -> None:
        """`copies`: whether the session's worker is copied after each cell."""
        self._links, self._cell = links, cell
        self._cpu = _WORTH_A_LOOK_OF_CPU + (_OF_A_COPY if copies else 0.0)
        self._hit: tuple[KillReason, ...] = ()
        self.full = False

    def is_full(self) -> None:
        """All processes are there that may be: forks are refused. From any thread."""
        self.full = bool(self._cell.running_since)

    def is_worth_a_look(self, seconds: float, cpu_seconds: float) -> bool:
        """Whether a cell that took so long may have met a limit that the kernel counts."""
        if seconds <= _WORTH_A_LOOK:
            return False
        return seconds > _LATE or cpu_seconds > self._cpu

    def memory_was_hit(self) -> bool:
        """Whether the kernel has ended a process of the session's for its memory."""
        group = self._links.group
        self._hit = () if group is None else group.hit()
        return "memory" in self._hit

    def added_to(self, outcome: AnyOutcome) -> AnyOutcome:
        """`outcome` with the limits that were enforced since the last one, if any."""
        group, usage = self._links.group, outcome.usage
        looks = group is not None and (
            type(outcome) is not Finished
            or self.is_worth_a_look(usage.execution_seconds, usage.cpu_seconds)
            or outcome.state != "kept"
        )
        if not looks and not self.full:
            return outcome
        counted = () if group is None else group.hit()
        # RLIMIT_NPROC tells nobody that it has refused a fork.
        seen: tuple[KillReason, ...] = ("processes",) if self.full else ()
        hit = tuple(dict.fromkeys(self._hit + counted + seen))
        self._hit, self.full = (), False
        return replace(outcome, limits=hit) if hit else outcome
