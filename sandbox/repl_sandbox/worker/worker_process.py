"""`WorkerProcess`: the process of a worker: its memory, and the children that code forks."""

from __future__ import annotations

import os
import resource
import time
from typing import NoReturn

from .cell.cell_evaluation import NOTHING, CellRun
from .cell.standard_streams import StandardStreams
from .namespace.workspace_modules import MODULES

_exit, _getpid, _write = os._exit, os.getpid, os.write
_getrusage, _SELF = resource.getrusage, resource.RUSAGE_SELF
_monotonic = time.monotonic


class WorkerProcess:
    """This process, once it `began` to be a session's worker.

    Attributes:
        peak_memory: bytes, as measured last.
        measured: when that was known last, on the monotonic clock: as a cell ended, or it began.
    """

    __slots__ = ("_pid", "_streams", "measured", "peak_memory")

    def __init__(self, streams: StandardStreams) -> None:
        self._streams = streams
        self._pid = 0
        self.peak_memory = 0
        self.measured: float = 0  # an int, whose object is everywhere

    def begin(self) -> None:
        """Be the worker of a session, from here on."""
        self._pid = _getpid()
        MODULES.begin()
        if self.peak_memory:
            self.measured = _monotonic()

    def measure(self) -> None:
        """Ask the kernel for the peak of memory."""
        self.peak_memory = _getrusage(_SELF).ru_maxrss * 1024

    def is_a_child(self) -> bool:
        """Whether this process is a child that the session's code forked."""
        # The kernel says so in any case: C code forks without running the hooks of Python.
        return _getpid() != self._pid

    def end_child(self, ran: CellRun = NOTHING) -> NoReturn:
        """A child that the cell forked has come to the cell's end: it must not answer for it.

        So it ends as a program does that comes to the same.
        """
        self._streams.watches = False  # the host gives its own to the parent alone
        self._streams.tidy()
        try:
            _write(2, ran.parting.encode("utf-8", "backslashreplace"))
        except OSError:
            pass  # it has closed its standard error
        _exit(ran.status)

    def give_up(self) -> NoReturn:
        """Die, so that the session goes back to the state before the cell; no copy was possible."""
        _write(2, b"the cell closed descriptors of the session itself\n")
        _exit(1)
