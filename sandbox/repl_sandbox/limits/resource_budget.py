"""What one session may hold: the limits of each of its processes, and of its group.

`Limits` are what code may use. Beside that a session has processes of ours, copies that wait, and
pages of its template that it has written to. Branches of a session are one with it: each of these
lines may hold as much again, in the one group.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..jail import mounts as private
from ..jail.rlimits import open_files
from ..types import Limits

if TYPE_CHECKING:
    from ..zygote.client.session_links import SessionLinks

# init, besides the code's own process.
_OWN_PROCESSES = 2
# Of a group whose session must not harm others, above RLIMIT_NPROC, which counts the worker's user
# alone: a flood of forks is then refused in 3 µs by the one, before anything is done, and not in
# 300 by the other, when all is copied under locks that every fork on the machine waits for.
_SPARE_PROCESSES = 16
# Of a session whose forks are admitted one by one, above its limit: the watchdog can then see that
# it passed the limit.
_EXCESS = 2
# And what a group is charged for them: init's pages, page tables, stacks in the kernel.
_OWN_MEMORY = 32 << 20


@dataclass(frozen=True, slots=True)
class ResourceBudget:
    """That of the sessions of one template, by the limits of each.

    `snapshots`: how many a session keeps besides its current one, -1 for not even that.
    `data_segment` and `room`: what the zygote says of itself. `template_memory`: bytes that it
    holds. `fair_share`: sessions must not harm others. `own_user`: each has a user of its own.
    """

    snapshots: int
    data_segment: int
    room: int
    template_memory: int
    fair_share: bool
    own_user: bool

    @property
    def own_processes(self) -> int:
        """Processes of one line that are not its code's, and its worker."""
        # Copies: of each state that is kept, of the current one, and one more while it is made, for
        # which there may be a process between.
        return _OWN_PROCESSES + (0 if self.snapshots < 0 else self.snapshots + 3)

    def rlimits(self, limits: Limits) -> dict[str, int]:
        """The limits of each process of a session, by the names of `jail.rlimits`."""
        rlimits = {
            "DATA": self.data_segment + int(limits.memory),
            # The kernel counts by user. Where that is also the host's, this only stops a flood of
            # them, and the watchdog counts the session's.
            "NPROC": self.room or self._processes(limits, 1),
            "NOFILE": open_files(limits.open_files, own_user=self.own_user),
            "FSIZE": int(limits.file_size),
        }
        if limits.cpu_seconds is not None:
            rlimits["CPU"] = max(1, round(limits.cpu_seconds))
        return rlimits

    def of_group(self, limits: Limits, lines: int = 1) -> tuple[int, int]:
        """The limits of a session's group while it has so many lines: bytes, and processes."""
        spare = _SPARE_PROCESSES if self.fair_share else 0
        return self._memory(limits, lines), self._processes(limits, lines) + spare

    def forked(self, limits: Limits) -> int:
        """Beyond how many processes no fork of a session is admitted, where forks are."""
        return self._processes(limits, 1) + _EXCESS

    def fit(self, links: SessionLinks, limits: Limits) -> Callable[[int], None]:
        """What gives the session at these links the room for so many lines."""
        group = links.group

        def fit(lines: int) -> None:
            if group is not None:
                group.limit(*self.of_group(limits, lines))

        return fit

    def _memory(self, limits: Limits, lines: int) -> int:
        # What a cell rewrites is there twice while a copy keeps what it was.
        theirs = int(limits.memory) * (1 if self.snapshots < 0 else 2)
        # Its files outlive its worker, so they must leave the next one all of its memory.
        files = private.capacity(int(limits.workspace))
        return lines * theirs + files + self.template_memory + _OWN_MEMORY

    def _processes(self, limits: Limits, lines: int) -> int:
        return limits.processes + lines * self.own_processes
