"""`Claim`: whether this process is the session's worker, or a child that its code forked.

A child comes to the end of a cell as the worker does, and must not answer for it. It may have been
forked in any way: what Python calls in each does not know of those that C code makes. Its number
tells, but to ask for that takes each cell a system call. A page tells as well that is the worker's
and that the kernel empties in each child: madvise(2), MADV_WIPEONFORK, Linux 4.14.
"""

from __future__ import annotations

import mmap
import os

_MADV_WIPEONFORK = 18  # uapi/asm-generic/mman-common.h


class Claim:
    """That of one process at a time.

    Attributes:
        page: its first item says whether it is this process's.
    """

    def __init__(self) -> None:
        self.page: mmap.mmap | _Number
        try:
            self.page = mmap.mmap(-1, mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            self.page.madvise(_MADV_WIPEONFORK)
        except OSError:
            self.page = _Number()  # a kernel that does not know it, or an emulated one

    def take(self) -> None:
        """It is this process's from here on."""
        self.page[0] = 1


class _Number:
    """What does without such a page: the number of the process."""

    def __init__(self) -> None:
        self._pid = 0

    def __getitem__(self, index: int) -> int:
        return os.getpid() == self._pid

    def __setitem__(self, index: int, value: int) -> None:
        self._pid = os.getpid()
