"""`Slices`: the processes of a session that gives way ask for long slices of the processor.

Each process that wants to run has a deadline, so far off as its slice is long and its weight small,
and the next deadline is run first. Of twenty loops of little weight one is always about to reach
its own: whoever wakes waits for some of them, a tick of 4 ms each. Who runs for longer at a time
has one further off. Slices of a process's own are those of EEVDF, since Linux 6.12; before, they
are asked for in vain.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from typing import Final

from .jail.libc import set_slice
from .seen import Seen, theirs

# Nanoseconds. Beside 20 loops on two processors, the longest of a hundred times until a process
# ran that woke was 12 ms, with slices of 6 ms 3.0, of 10 1.8, of 20 1.7, of 100 (the most that
# there is) 1.4. A cell of theirs waits for those of the others, and so much longer.
LONG: Final = 20_000_000
_ORDINARY: Final = 0
# Processes that are asked in one look: a bomb's are new in each, and have what their parents had.
_MOST: Final = 64
# What a process that may not be touched, or a kernel that knows no such call, says.
_NEVER: Final = (errno.EPERM, errno.ENOSYS, errno.EINVAL)


class Slices:
    """Those of one session."""

    def __init__(self) -> None:
        self._long: dict[int, int] = {}  # process id: when it began
        self._works = True

    def lengthen(self, init: int, processes: Sequence[Seen]) -> None:
        """Have all of a session's `processes` but its `init` and what that does itself run long.

        What they fork does so too.
        """
        if not self._works:
            return
        there = {each.pid: each for each in theirs(processes, init)}
        asked = {pid: began for pid, began in self._long.items() if pid in there}
        new = [each for pid, each in there.items() if asked.get(pid) != each.began]
        for each in new[:_MOST]:
            self._ask(each, LONG)
            asked[each.pid] = each.began
        self._long = asked

    def reset(self, processes: Sequence[Seen]) -> None:
        """Let them have again what the kernel gives."""
        if self._long:
            self._long = {}
            for each in processes:
                self._ask(each, _ORDINARY)

    def _ask(self, process: Seen, nanoseconds: int) -> None:
        for thread in _threads(process.pid) if process.threads > 1 else (process.pid,):
            try:
                set_slice(thread, nanoseconds)
            except OSError as error:  # or it has ended
                if error.errno in _NEVER:
                    self._works = False


def _threads(pid: int) -> Iterator[int]:
    try:
        yield from map(int, os.listdir(f"/proc/{pid}/task"))
    except OSError:
        return  # it has ended
