"""`LimitHits`: the limits that the kernel enforced on a session while a cell ran."""

from __future__ import annotations

from dataclasses import replace

from ...types import AnyOutcome, Finished, KillReason
from ...zygote.client.session_links import SessionLinks
from .running_cell import RunningCell

# Reading the kernel's counters takes microseconds. No process can be started, use up the memory and
# be killed in less than this; the counters are read after the next cell instead.
_CHECK_SECONDS = 0.002
# Nor in less than this, if the worker used no more CPU time than that: it did nothing else, and the
# host, which serves other sessions, read the result late.
_LATE = 0.02
_CHECK_CPU_SECONDS = 0.00025
# Added CPU time of a small session's snapshot, which a cell that follows immediately has among its
# own; with it, a cell that runs a program uses 0.75 ms and more.
_SNAPSHOT_CPU_SECONDS = 0.0005


class LimitHits:
    """The limits that the running cell hit. `full`: the session had as many processes as
    allowed.
    """

    def __init__(self, links: SessionLinks, cell: RunningCell, *, snapshots: bool) -> None:
        """`snapshots`: whether the worker makes a snapshot after each cell."""
        self._links, self._cell = links, cell
        self._cpu = _CHECK_CPU_SECONDS + (_SNAPSHOT_CPU_SECONDS if snapshots else 0.0)
        self._hit: tuple[KillReason, ...] = ()
        self.full = False

    def note_process_limit(self) -> None:
        """Note that the session has as many processes as allowed, so forks fail. Called from any
        thread.
        """
        self.full = bool(self._cell.running_since)

    def needs_check(self, seconds: float, cpu_seconds: float) -> bool:
        """Return whether a cell of this duration may have hit a limit that the kernel counts."""
        if seconds <= _CHECK_SECONDS:
            return False
        return seconds > _LATE or cpu_seconds > self._cpu

    def memory_was_hit(self) -> bool:
        """Return whether the kernel killed a process of the session because of the memory limit."""
        group = self._links.group
        self._hit = () if group is None else group.hit()
        return "memory" in self._hit

    def add_to(self, outcome: AnyOutcome) -> AnyOutcome:
        """Return `outcome` with the limits that were enforced since the last call."""
        group, usage = self._links.group, outcome.usage
        is_checked = group is not None and (
            type(outcome) is not Finished
            or self.needs_check(usage.execution_seconds, usage.cpu_seconds)
            or outcome.state != "kept"
        )
        if not is_checked and not self.full:
            return outcome
        counted = () if group is None else group.hit()
        # The kernel counts no fork that RLIMIT_NPROC refused.
        noted: tuple[KillReason, ...] = ("processes",) if self.full else ()
        hit = tuple(dict.fromkeys(self._hit + counted + noted))
        self._hit, self.full = (), False
        return replace(outcome, limits=hit) if hit else outcome
