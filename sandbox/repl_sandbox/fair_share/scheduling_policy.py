"""`SchedulingPolicy`: long scheduler slices, and the batch policy, for a session that is slowed
down.

EEVDF runs the process with the next deadline first; the deadline is as far off as the process's
slice is long and its weight small. Of twenty loops of little weight one is always about to reach
its deadline, so a process that wakes waits for several of them, a tick of 4 ms each. Long slices
move their deadlines off. A process may have a slice of its own since Linux 6.12; older kernels
ignore the request.

A batch process (SCHED_BATCH, sched(7)) does not interrupt a running process when it wakes. Neither
needs a privilege, and the same user can undo both. The idle class is not used: a session in it
starves beside a process that computes for hours, and an ordinary user cannot undo it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from typing import Final

from ..limits.proc_stat import ProcStat, without_init
from ..native.libc import set_scheduling

# Nanoseconds. Beside 20 loops on two processors, the longest of a hundred wake-up latencies was 12
# ms, with slices of 6 ms 3.0, of 10 1.8, of 20 1.7, of 100 (the maximum) 1.4. A cell of a session
# that is slowed down waits for the slices of the others.
LONG: Final = 20_000_000
_ORDINARY: Final = 0
# Processes changed in one call: those of a fork bomb are always new, and inherit the attributes.
_MAX_CHANGED: Final = 64
# Calls: a process that was forked during one may have inherited its parent's attributes, and
# proc(5) may leave out a child while others are forked or end.
_RESTORES: Final = 8
# Errors for a process of another user, and of a kernel without the call.
_NEVER: Final = (errno.EPERM, errno.ENOSYS)


class SchedulingPolicy:
    """The scheduling attributes of one session's processes."""

    def __init__(self) -> None:
        self._lowered: dict[int, int] = {}  # process id: its start
        self.restores = 0  # remaining calls in which processes are restored
        self._works = True

    def lower(self, init: int, processes: Sequence[ProcStat], *, batch: bool) -> None:
        """Give `processes`, except `init` and its helpers, long slices, and with `batch` that
        policy.

        Processes that they fork inherit both.
        """
        if not self._works:
            return
        current = {each.pid: each for each in without_init(processes, init)}
        lowered = {pid: began for pid, began in self._lowered.items() if pid in current}
        new = [each for pid, each in current.items() if lowered.get(pid) != each.began]
        for each in new[:_MAX_CHANGED]:
            self._set(each, os.SCHED_BATCH if batch else os.SCHED_OTHER, LONG)
            lowered[each.pid] = each.began
        self._lowered, self.restores = lowered, _RESTORES

    def restore(self, processes: Sequence[ProcStat]) -> None:
        """Give `processes` the kernel's defaults again."""
        if self.restores:
            self._lowered = {}
            self.restores -= 1
            for each in processes:
                self._set(each, os.SCHED_OTHER, _ORDINARY)

    def _set(self, process: ProcStat, policy: int, nanoseconds: int) -> None:
        for thread in _threads(process.pid) if process.threads > 1 else (process.pid,):
            try:
                set_scheduling(thread, policy, nanoseconds)
            except OSError as error:  # or the process has ended
                if error.errno in _NEVER:
                    self._works = False


def _threads(pid: int) -> Iterator[int]:
    try:
        yield from map(int, os.listdir(f"/proc/{pid}/task"))
    except OSError:
        return  # the process has ended
