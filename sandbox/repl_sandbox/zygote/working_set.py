"""The working set: pages of a template that each of its sessions writes to before its first answer.

After a fork the first write to a page copies it, by a fault of some microseconds. All sessions of a
template do the same until their first cell has run, so they copy the same pages. The host looks at
one session which these are (`copied`); from then on each has the kernel copy them in one call.

It saves time and changes nothing else: where it cannot be found or used, sessions do without.
"""

from __future__ import annotations

import ctypes
import struct
from typing import Final, NamedTuple

from ..jail import memory

RUN: Final = struct.Struct("@PN")  # struct iovec: address of the first page, bytes
MOST_RUNS: Final = 1024  # UIO_MAXIOV: process_madvise(2) takes no more


class WorkingSet:
    """Pages in the memory of this process, at the same addresses in all that are forked from it.

    `runs`: as `copied.find` returns them. OSError if this kernel does not copy pages on request.
    """

    def __init__(self, runs: bytes) -> None:
        self._runs = ctypes.create_string_buffer(runs, len(runs))
        self.runs = ctypes.addressof(self._runs), len(runs) // RUN.size
        memory.populate(self.runs[0], min(1, self.runs[1]))

    def bring(self) -> None:
        """Have these pages for this process alone."""
        try:
            memory.populate(*self.runs)
        except OSError:
            pass  # no memory for all of them: each is copied when it is written to, or is not


class WorkingSets(NamedTuple):
    """Those of the first two processes of a session."""

    init: WorkingSet
    worker: WorkingSet
