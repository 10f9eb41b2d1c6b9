"""A worker's namespace, and the cells that run in it."""

from __future__ import annotations

import builtins
import os
import resource
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

from ..errors import HostCallError, PolicyError
from ..types import Change, ErrorInfo
from ..wire.messages import Result, encode
from . import sources
from .answers import Answers
from .branching import Branching
from .cell import NOTHING, Ran, run_cell
from .changes import Changes
from .channel import Channel
from .figures import take_figures
from .host_calls import HostCalls
from .interrupts import Interrupts
from .namespace import Namespace
from .outputs import Outputs
from .printed import HOOK, call_hook
from .streams import Streams
from .workspace_modules import MODULES

if TYPE_CHECKING:
    from ..policies.rules import Rules

_exit = os._exit
_getpid = os.getpid
_getrusage, _SELF = resource.getrusage, resource.RUSAGE_SELF
_gettrace, _settrace = sys.gettrace, sys.settrace
_getprofile, _setprofile = sys.getprofile, sys.setprofile
_modules = sys.modules
_monotonic = time.monotonic

_PYPLOT = "matplotlib.pyplot"

# Seconds; in this time a process touches some 2 MB of new memory.
_SHORT = 0.001
# Seconds between two cells, below which what the second one writes is worth to be copied before.
# That spares it some 0.3 ms; a model thinks for longer.
_HURRY = 0.1


class Cells:
    """A namespace, what is said about it, and what its code may call."""

    def __init__(self, rules: Rules | None = None) -> None:
        self._pid = 0  # of the session's worker
        self._peak = 0
        self._copies: Branching | None = None
        self._used = False  # whether code of the session has run
        self._answered = 0.0  # when the last cell ended
        self._known = 0.0  # when its peak of memory was known last: as that ended, or it began
        self._hurried = False  # with copies: whether it had come soon after the one before it
        self._interrupts = Interrupts()
        self._channel = Channel(self._interrupts)
        self._calls = HostCalls(self._channel)
        self._namespace = Namespace()
        self._streams = Streams(self._calls.streams)
        self._answers: Answers | None = None
        self._printed: Callable[[str, bool], None] | None = None
        self._namespace.inject("_out", Outputs(self._calls.call, lambda: self._calls.cell))
        builtins.HostCallError = HostCallError  # type: ignore[attr-defined]
        if rules is not None:
            self._follow(rules)
        self._changes = Changes(self._namespace)

    def _follow(self, rules: Rules) -> None:
        self._namespace.check = rules.check
        builtins.PolicyError = PolicyError  # type: ignore[attr-defined]
        if rules.builtins is not None:
            rules.builtins[HOOK] = call_hook
            self._namespace.globals["__builtins__"] = rules.builtins

    def _execute(self, cell: int, code: bytes) -> bytes:
        """Run a cell; its result, as it is to be sent."""
        self._used = True
        settle = None
        if self._copies is not None:
            self._copies.due, self._copies.cell = True, cell
            settle = self._copies.settle
            self._hurried = _monotonic() - self._answered < _HURRY
        self._calls.cell = cell
        try:
            self._interrupts.arm(cell)
            try:
                text = code.decode()
            except UnicodeDecodeError:
                text = code.decode("utf-8", "surrogatepass")  # takes longer
            ran = run_cell(text, cell, self._namespace, self._printed, settle)
        except KeyboardInterrupt:
            # It struck outside of the cell's own code, while that was starting or ending. Before
            # anything is called, where another would strike and end the worker:
            self._interrupts.armed = False
            ran = Ran(None, ErrorInfo("KeyboardInterrupt", "", "KeyboardInterrupt\n", None))
        finally:
            self._interrupts.armed = False
        if self._is_a_child():
            self._end_child(ran)
        if _gettrace() is not None or _getprofile() is not None:
            _settrace(None)
            _setprofile(None)
        if self._answers is not None:
            self._answers.poll()
        # A cell that calls nothing may still drop what has one of the descriptors open. In a
        # session whose steps take as long as a dozen of such looks, the next one that does more
        # finds that.
        look = self._copies is not None or ran is not NOTHING or b"(" in code
        self._streams.tidy(look=look)
        if self._copies is not None and not self._copies.is_connected():
            self._give_up()
        self._calls.cell = 0
        changes = self._changes.since_last()
        now = _monotonic()
        # Asked of the kernel only if the cell may have run long enough to have touched much.
        if now - self._known > _SHORT:
            self._peak = peak_memory()
        self._answered = self._known = now
        if ran is NOTHING and not changes and _PYPLOT not in _modules:
            # Loaded first, as CPython 3.11 does not specialise a call of what an object holds.
            say = self._channel.said_of_nothing
            return say(cell, self._peak)
        return self._channel.said(self._result(cell, ran, changes))

    def _begin(self) -> None:
        """Be the worker of a session, from here on."""
        self._pid = _getpid()
        MODULES.begin()
        if self._peak:
            self._known = _monotonic()

    def _touch_pages(self) -> None:
        """Run a cell that does nothing, and send no result.

        The first write to a page after a fork copies it. A cell writes some two hundred; this has
        them copied while the host, which has what it wanted by now, is busy.
        """
        ran = NOTHING
        try:
            self._interrupts.arm()
            ran = run_cell("None", 0, self._namespace, self._printed)
            sources.drop_last()
        except KeyboardInterrupt:  # as in `_execute`
            self._interrupts.armed = False
        finally:
            self._interrupts.armed = False
        encode(self._result(0, ran, self._changes.since_last()))

    def _result(self, cell: int, ran: Ran, changes: list[Change]) -> Result:
        figures = self._figures(cell) if _PYPLOT in _modules else ()
        return Result(cell, ran.value, ran.error, tuple(changes), figures, self._peak)

    def _figures(self, cell: int) -> tuple[bytes, ...]:
        """Open figures, drawn on the cell's clock: that takes its time, and runs code of it."""
        try:
            self._interrupts.arm(cell)
            return tuple(take_figures())
        except KeyboardInterrupt:  # as in `_execute`
            self._interrupts.armed = False
            return ()
        finally:
            self._interrupts.armed = False

    def _give_up(self) -> NoReturn:
        """Die, so that the session goes back to the state before the cell; no copy was possible."""
        os.write(2, b"the cell closed descriptors of the session itself\n")
        _exit(1)

    def _is_a_child(self) -> bool:
        """Whether this process is a child that the session's code forked."""
        # The kernel says so in any case: C code forks without running the hooks of Python.
        return _getpid() != self._pid

    def _end_child(self, ran: Ran = NOTHING) -> NoReturn:
        """A child that the cell forked has come to the cell's end: it must not answer for it.

        So it ends as a program does that comes to the same.
        """
        self._streams.watches = False  # the host gives its own to the parent alone
        self._streams.tidy()
        try:
            os.write(2, ran.parting.encode("utf-8", "backslashreplace"))
        except OSError:
            pass  # it has closed its standard error
        _exit(ran.status)


def peak_memory() -> int:
    """Bytes, of this process."""
    return _getrusage(_SELF).ru_maxrss * 1024
