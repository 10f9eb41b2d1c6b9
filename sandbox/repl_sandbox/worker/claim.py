"""`Claim`: whether this process is the session's worker, or a child that its code forked.

A child comes to the end of a cell as the worker does, and must not answer for it. It may have been
forked in any way: what Python calls in each does not know of those that C code makes. Its number
tells, but to ask for that takes each cell a system call. A page tells as well that is the worker's
and that the kernel empties in each child: madvise(2), MADV_WIPEONFORK, Linux 4.14.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from functools import partial

_MADV_WIPEONFORK = 18  # uapi/asm-generic/mman-common.h

_getpid = os.getpid


class Claim:
    """That of one process at a time.

    Attributes:
        holds: whether it is this process's.
    """

    def __init__(self) -> None:
        self._pid = 0
        self._page: mmap.mmap | None = None
        self.holds: Callable[[], object] = self._is_same
        try:
            page = mmap.mmap(-1, mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            page.madvise(_MADV_WIPEONFORK)
        except OSError:
            return  # a kernel that does not know it, or an emulated one
        self._page = page
        self.holds = partial(page.__getitem__, 0)

    def take(self) -> None:
        """It is this process's from here on."""
        if self._page is None:
            self._pid = _getpid()
        else:
            self._page[0] = 1

    def _is_same(self) -> bool:
        return _getpid() == self._pid
