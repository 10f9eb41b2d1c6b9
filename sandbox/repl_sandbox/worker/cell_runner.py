"""`CellRunner`: runs a session's cells and internal jobs, each from its code to its result."""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

from ..protocol.messages import Result, encode
from ..types import Change, ErrorInfo
from .channel import Interrupts, WorkerChannel
from .displays import DISPLAYS, take_figures
from .evaluation import NOTHING, CellRun, run_cell
from .host_stubs import HostCallClient
from .imports import MODULES
from .namespace import Namespace, drop_last
from .streams import StandardStreams
from .tracebacks import describe
from .variables import VariableChanges

if TYPE_CHECKING:
    from .answers import FinalAnswers
    from .branch import BranchFork
    from .snapshot_table import SnapshotTable


# `SessionState`: state of the session that all parts of a worker share.


class SessionState:
    """The state of one session, in its worker and in each fork of the worker.

    Attributes:
        table: memory page that the worker shares with its init.
        snapshots: None where the session has no recovery.
        answers: None where the session has no answer functions.
        printed: accepts printed forms of an answer, as `printed` of `run_cell`.
        used: whether code of the session has run.
        ended: end of the last cell, on the monotonic clock.
        rapid: with snapshots, whether the last cell came soon after the one before.
    """

    __slots__ = ("answers", "ended", "printed", "rapid", "snapshots", "table", "used")

    def __init__(self) -> None:
        self.table: SnapshotTable | None = None
        self.snapshots: BranchFork | None = None
        self.answers: FinalAnswers | None = None
        self.printed: Callable[[str, bool], None] | None = None
        self.used = False
        self.ended: float = 0  # an int: an object that exists already
        self.rapid = False

    def changed(self) -> None:
        """Record that the variables differ, or may differ, from those of the last snapshot."""
        if self.snapshots is not None:
            self.snapshots.due = True

    def interrupted(self) -> int:
        """The cell that the last interrupt was for; 0 before there was any."""
        # A branch has another page.
        table = self.table if self.snapshots is None else self.snapshots.table
        return 0 if table is None else table.interrupted


# `WorkerProcess`: the process of a worker: its memory, and children that session code forks.

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


_close = os.close
_gettrace, _settrace = sys.gettrace, sys.settrace
_getprofile, _setprofile = sys.getprofile, sys.setprofile
_modules = sys.modules

_PYPLOT = "matplotlib.pyplot"

# Seconds; in this time a process touches some 2 MB of new memory.
_SHORT = 0.001
# Seconds between two cells below which it pays to copy the pages that the second one will write in
# advance. That saves the cell some 0.3 ms; a model thinks for longer.
_RAPID = 0.1


class CellRunner:
    """The cells and jobs of one namespace, one at a time."""

    __slots__ = (
        "_calls",
        "_changes",
        "_channel",
        "_interrupts",
        "_namespace",
        "_process",
        "_session",
        "_streams",
    )

    def __init__(
        self,
        session: SessionState,
        process: WorkerProcess,
        channel: WorkerChannel,
        interrupts: Interrupts,
        calls: HostCallClient,
        streams: StandardStreams,
        namespace: Namespace,
        changes: VariableChanges,
    ) -> None:
        self._session, self._process = session, process
        self._channel, self._interrupts = channel, interrupts
        self._calls, self._streams = calls, streams
        self._namespace, self._changes = namespace, changes

    def execute(self, cell: int, code: bytes) -> bytes:
        """Run a cell and return its result as bytes to send."""
        session, process = self._session, self._process
        session.used = True
        wait_until_detached = None
        snapshots = session.snapshots
        if snapshots is not None:
            snapshots.due, snapshots.cell = True, cell
            wait_until_detached = snapshots.wait_until_detached
            session.rapid = _monotonic() - session.ended < _RAPID
        self._calls.cell = cell
        ran = self._evaluate(cell, code, wait_until_detached)
        if process.is_forked_child():
            process.end_child(ran)
        if _gettrace() is not None or _getprofile() is not None:
            _settrace(None)
            _setprofile(None)
        if session.answers is not None:
            session.answers.poll()
        # A cell that calls nothing may still drop the object that keeps a descriptor open. In a
        # session whose steps take as long as a dozen of such checks, the next larger cell finds
        # that.
        check_closed = snapshots is not None or ran is not NOTHING or b"(" in code
        self._streams.restore(check_closed=check_closed)
        if snapshots is not None and not snapshots.is_connected():
            process.exit_without_snapshot()
        self._calls.cell = 0
        changes = self._changes.since_last()
        now = _monotonic()
        # Measured only if the cell may have run long enough to touch much memory.
        if now - process.measured > _SHORT:
            process.measure()
        session.ended = process.measured = now
        if ran is NOTHING and not changes and _PYPLOT not in _modules and not DISPLAYS:
            # Loaded first, because CPython 3.11 does not specialise a call of an attribute of an
            # object.
            encode_result = self._channel.encode_empty_result
            return encode_result(cell, process.peak_memory)
        return self._channel.encoded(self._result(cell, ran, changes))

    def _evaluate(
        self, cell: int, code: bytes, before_first_code: Callable[[], None] | None
    ) -> CellRun:
        """Run the code of a cell, interruptible from the beginning to the end."""
        try:
            self._interrupts.arm(cell)
            try:
                text = code.decode()
            except UnicodeDecodeError:
                text = code.decode("utf-8", "surrogatepass")  # slower
            return run_cell(text, cell, self._namespace, self._session.printed, before_first_code)
        except KeyboardInterrupt:
            # The interrupt arrived outside of the cell's own code, at its start or end. Disarm
            # before any call, during which another interrupt would arrive and end the worker:
            self._interrupts.armed = False
            return CellRun(None, ErrorInfo("KeyboardInterrupt", "", "KeyboardInterrupt\n", None))
        finally:
            self._interrupts.armed = False

    def run_job(self, cell: int, job: Callable[[int], str]) -> None:
        """Run an internal job, and send its result; like a cell, it may be interrupted.

        `job` is called with the memfd attached to the command, and returns the value.
        """
        self._session.used = True
        self._session.changed()
        try:
            ran = CellRun(self._value_of(job), None)
        # Boundary: pickles run code of the user's, which may raise anything.
        except BaseException as error:  # noqa: BLE001
            self._interrupts.armed = False  # as in `_evaluate`
            ran = CellRun(None, describe(error, 0))
        finally:
            self._interrupts.armed = False
        if self._process.is_forked_child():
            self._process.end_child()
        self._streams.restore()
        self._channel.send(self._result(cell, ran, []))

    def _value_of(self, job: Callable[[int], str]) -> str:
        fd = self._calls.memfd()
        self._interrupts.arm()
        try:
            return job(fd)
        finally:
            try:
                _close(fd)
            except OSError:
                pass  # closed by code that a pickle ran

    def touch_pages(self) -> None:
        """Run a cell that does nothing, and send no result.

        The first write to a page after a fork copies it. A cell writes some two hundred pages; this
        copies them in advance, while the host, which has its result by now, is busy.
        """
        ran = NOTHING
        try:
            self._interrupts.arm()
            ran = run_cell("None", 0, self._namespace, self._session.printed)
            drop_last()
        except KeyboardInterrupt:  # as in `_evaluate`
            self._interrupts.armed = False
        finally:
            self._interrupts.armed = False
        encode(self._result(0, ran, self._changes.since_last()))

    def _result(self, cell: int, ran: CellRun, changes: list[Change]) -> Result:
        if _PYPLOT in _modules:
            self._draw(cell)
        displays, figures = DISPLAYS.take() if DISPLAYS else ((), ())
        peak = self._process.peak_memory
        return Result(cell, ran.value, ran.error, tuple(changes), figures, peak, displays)

    def _draw(self, cell: int) -> None:
        """Draw the open figures. That counts as the cell's time: it may run code of it."""
        try:
            self._interrupts.arm(cell)
            take_figures()
        except KeyboardInterrupt:  # as in `_evaluate`
            self._interrupts.armed = False
        finally:
            self._interrupts.armed = False
