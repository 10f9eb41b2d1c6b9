"""`ResourceBudget`: the limits of each process of a session, and of its cgroup.

`Limits` are for the user's code. Besides, a session has processes of the engine, snapshots, and
pages of its template that it has written to. The branches of a session share its cgroup: each may
hold as much again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..jail import mounts as private
from ..jail.rlimits import open_files
from ..session_limits import Limits

if TYPE_CHECKING:
    from ..zygote.client.session_links import SessionLinks

# init, besides the worker.
_OWN_PROCESSES = 2
# Spare processes of the cgroup of a session under fair share, above RLIMIT_NPROC, which counts the
# worker's user alone: RLIMIT_NPROC then refuses the forks of a fork bomb in 3 µs, before anything
# is copied; the cgroup would take 300 µs, under locks that every fork on the machine needs.
_SPARE_PROCESSES = 16
# Spare processes of a session whose forks are admitted one by one: the watchdog can then see that
# the limit was exceeded.
_EXCESS = 2
# Memory of the cgroup for the engine: init's pages, page tables, kernel stacks.
_OWN_MEMORY = 32 << 20


@dataclass(frozen=True, slots=True)
class ResourceBudget:
    """The limits of the sessions of one template.

    `snapshots`: the number that a session keeps besides the current one, -1 for not even that.
    `data_segment`, `process_limit`: the zygote's report of itself. `template_memory`: bytes of the
    zygote. `fair_share`: sessions must not harm others. `own_user`: each has a user of its own.
    """

    snapshots: int
    data_segment: int
    process_limit: int
    template_memory: int
    fair_share: bool
    own_user: bool

    @property
    def own_processes(self) -> int:
        """Processes of one branch that are not its code's, and its worker."""
        # Snapshots: of each state that is kept, of the current one, and one more while it is made,
        # perhaps with a process between.
        return _OWN_PROCESSES + (0 if self.snapshots < 0 else self.snapshots + 3)

    def rlimits(self, limits: Limits) -> dict[str, int]:
        """The limits of each process of a session, by the names of `jail.rlimits`."""
        rlimits = {
            "DATA": self.data_segment + int(limits.memory),
            # The kernel counts by user. If that is also the host's user, this only stops fork
            # bombs, and the watchdog counts the session's processes.
            "NPROC": self.process_limit or self._processes(limits, 1),
            "NOFILE": open_files(limits.open_files, own_user=self.own_user),
            "FSIZE": int(limits.file_size),
        }
        if limits.cpu_seconds is not None:
            rlimits["CPU"] = max(1, round(limits.cpu_seconds))
        return rlimits

    def of_group(self, limits: Limits, branches: int = 1) -> tuple[int, int]:
        """The limits of the cgroup of a session with `branches`: bytes, and processes."""
        spare = _SPARE_PROCESSES if self.fair_share else 0
        return self._memory(limits, branches), self._processes(limits, branches) + spare

    def forked(self, limits: Limits) -> int:
        """The number of processes beyond which a session's forks are refused, where forks are
        admitted.
        """
        return self._processes(limits, 1) + _EXCESS

    def adjust(self, links: SessionLinks, limits: Limits) -> Callable[[int], None]:
        """Return a function that adapts the cgroup of the session at `links` to its number of
        branches.
        """
        group = links.group

        def adjust(branches: int) -> None:
            if group is not None:
                group.limit(*self.of_group(limits, branches))

        return adjust

    def _memory(self, limits: Limits, branches: int) -> int:
        # Memory that a cell rewrites exists twice while a snapshot keeps the old pages.
        session_memory = int(limits.memory) * (1 if self.snapshots < 0 else 2)
        # Files outlive the worker, so they must leave the next worker all of its memory.
        files = private.capacity(int(limits.workspace))
        return branches * session_memory + files + self.template_memory + _OWN_MEMORY

    def _processes(self, limits: Limits, branches: int) -> int:
        return limits.processes + branches * self.own_processes
