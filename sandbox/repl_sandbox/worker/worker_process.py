"""`WorkerProcess`: the process of a worker: its memory, and children that session code forks."""

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
    """This process, once `begin` has made it a session's worker.

    Attributes:
        peak_memory: bytes, as last measured.
        measured: time of the last measurement, on the monotonic clock: a cell's end, or the start.
    """

    __slots__ = ("_pid", "_streams", "measured", "peak_memory")

    def __init__(self, streams: StandardStreams) -> None:
        self._streams = streams
        self._pid = 0
        self.peak_memory = 0
        self.measured: float = 0  # an int: an object that exists already

    def begin(self) -> None:
        """Make this process the worker of a session."""
        self._pid = _getpid()
        MODULES.begin()
        if self.peak_memory:
            self.measured = _monotonic()

    def measure(self) -> None:
        """Measure the peak memory."""
        self.peak_memory = _getrusage(_SELF).ru_maxrss * 1024

    def is_forked_child(self) -> bool:
        """Return whether this process is a child that the session's code forked."""
        # The kernel always knows: C code forks without running Python's hooks.
        return _getpid() != self._pid

    def end_child(self, ran: CellRun = NOTHING) -> NoReturn:
        """End a child of the cell at the cell's end: it must not reply for the worker.

        It ends like a program with the same last statement.
        """
        self._streams.are_watched = False  # the host gives new descriptors to the parent alone
        self._streams.restore()
        try:
            _write(2, ran.exit_text.encode("utf-8", "backslashreplace"))
        except OSError:
            pass  # it has closed its standard error
        _exit(ran.status)

    def exit_without_snapshot(self) -> NoReturn:
        """Exit: no snapshot was possible, so the session returns to the state before the cell."""
        _write(2, b"the cell closed descriptors of the session itself\n")
        _exit(1)
