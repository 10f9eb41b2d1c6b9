"""The worker's loop: read a command, do it, answer, until the host is gone."""

from __future__ import annotations

import _thread
import builtins
import gc
import json
import os
import resource
import socket
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

from ..errors import HostCallError, PolicyError
from ..types import Change, ErrorInfo
from ..wire.messages import (
    VERSION,
    Assign,
    Configure,
    Execute,
    Failed,
    Fetch,
    ListVariables,
    Load,
    Ready,
    Restored,
    Result,
    Save,
    Value,
    Variables,
    encode,
)
from . import sources, values
from .answers import Answers
from .branching import ASK_FOR_BRANCH, Branching
from .cell import NOTHING, Ran, run_cell
from .changes import Changes
from .channel import Channel, Disconnected
from .copies import Recovery, Woken
from .figures import take_figures
from .host_calls import HostCalls
from .interrupts import Interrupts
from .moving import move
from .namespace import Namespace
from .outputs import Outputs
from .printed import HOOK, call_hook
from .seeding import seed
from .states import States
from .streams import Streams
from .tracebacks import describe

if TYPE_CHECKING:
    from ..policies.rules import Rules
    from ..wire.offered import Offered

_exit = os._exit
_getpid = os.getpid
_getrusage, _SELF = resource.getrusage, resource.RUSAGE_SELF
_gettrace, _settrace = sys.gettrace, sys.settrace
_getprofile, _setprofile = sys.getprofile, sys.setprofile
_modules = sys.modules
_thread_count = _thread._count  # as the tests of threading use it
_monotonic = time.monotonic

_PYPLOT = "matplotlib.pyplot"

# Seconds; in this time a process touches some 2 MB of new memory.
_SHORT = 0.001
# Milliseconds in which a host that opened a session for a cell has sent it.
_SOON = 2
# Milliseconds that a worker is left in peace after its answer, before it is copied: a session that
# is closed by then, as those of one cell are, is spared the copy.
_PEACE = 1
# Seconds between two cells, below which what the second one writes is worth to be copied before.
# That spares it some 0.3 ms; a model thinks for longer.
_HURRY = 0.1
# The same before any code of the session has run. What it has is from the host, it may never be
# used, and a model thinks for longer than this. A cell that comes sooner waits for its copy.
_PEACE_UNUSED = 1000


class Worker:
    """One namespace and the conversation about it.

    Made once, in the template; each session's process is a fork of that and calls `serve`.
    """

    def __init__(self, rules: Rules | None = None) -> None:
        self._pid = 0
        self._peak = 0
        # Whether there is more than one processor for it and the host.
        self._has_company = len(os.sched_getaffinity(0)) > 1
        self._copies: Branching | None = None
        self._used = False  # whether code of the session has run
        self._answered = 0.0  # when the last cell ended
        self._hurried = False  # whether it had come soon after the one before it
        self._interrupts = Interrupts()
        self._channel = Channel(self._interrupts)
        self._calls = HostCalls(self._channel)
        self._namespace = Namespace()
        self._streams = Streams()
        self._answers: Answers | None = None
        self._printed: Callable[[str, bool], None] | None = None
        self._namespace.inject("_out", Outputs(self._calls.call, lambda: self._calls.cell))
        builtins.HostCallError = HostCallError  # type: ignore[attr-defined]
        if rules is not None:
            self._follow(rules)
        self._changes = Changes(self._namespace)
        self._commands: dict[type, Callable[[Any], None]] = {
            Configure: self._configure,
            Assign: self._assign,
            Fetch: self._fetch,
            ListVariables: self._list,
            Save: self._carry_out,
            Load: self._carry_out,
        }

    def _follow(self, rules: Rules) -> None:
        self._namespace.check = rules.check
        builtins.PolicyError = PolicyError  # type: ignore[attr-defined]
        if rules.builtins is not None:
            rules.builtins[HOOK] = call_hook
            self._namespace.globals["__builtins__"] = rules.builtins

    def share(self, objects: dict[str, object]) -> None:
        """In a template: bind these for its sessions, as variables that were always there."""
        self._namespace.globals.update(objects)
        self._changes.since_last()
        self._peak = _peak_memory()

    def follow_forks(self) -> None:
        """In a template: see to what the session's code forks."""
        os.register_at_fork(after_in_child=self._after_fork)

    def serve(
        self, fd: int, states: States, recovery: Recovery | None, *, has_pages: bool
    ) -> NoReturn:
        """Obey the host on socket `fd` until it closes the conversation; then the process ends.

        `states`, `recovery`: as of `belong_to`. `has_pages`: those that a first cell writes to are
        copied, so one that comes at once need not be prepared for.
        """
        self.belong_to(fd, states, recovery)
        try:
            self.open(fd)
            if not has_pages or not self._channel.waits(_SOON):
                self._touch_pages()
            self._obey_always()
        except Disconnected:
            _exit(0)

    def serve_on(self, pid: int, *, has_pages: bool) -> None:
        """As `serve`, for who was made to `belong_to` a session before it was forked as `pid`.

        What `prepare` returned was sent; with `has_pages` a command has come. Returns when the
        host has closed the conversation.
        """
        self._pid = pid
        try:
            if not has_pages:
                self._touch_pages()
            self._obey_always()
        except Disconnected:
            pass

    def belong_to(self, fd: int, states: States, recovery: Recovery | None) -> None:
        """Be the worker of a session which speaks on socket `fd`.

        `states`: the page that it shares with its init. With `recovery`, after all that changes the
        state a copy of this process is made that can take over.
        """
        self._copies = None if recovery is None else Branching(recovery, fd)
        # Who sleeps in recvmsg(2) is also woken as the host reads what was sent to it: there is
        # room to write then (unix_write_space). poll(2) says what to be woken by. It is one call
        # more, and saves nothing where the host has read by then: while a copy is made, and with
        # one processor for both.
        self._channel.polls = recovery is None and self._has_company
        self._states = states
        self._interrupts.meant = self._meant

    def _obey_always(self) -> NoReturn:
        gc.enable()
        while True:
            try:
                self.obey()
            except Disconnected:
                raise
            # Boundary: a signal handler of the session's code may raise while nothing runs.
            except BaseException as error:
                if not self._channel.idle:
                    raise
                _complain(error)

    def _meant(self) -> int:
        """The cell that the last interrupt was meant for."""
        # A branch has another page.
        return (self._states if self._copies is None else self._copies.states).interrupted

    def prepare(self, fd: int) -> bytes:
        """In a template: be as one that has begun, on a socket `fd` that there will be.

        Returns: what has to be sent there.
        """
        ours, theirs = socket.socketpair()
        with ours, theirs:
            # For as long as it takes to have an object of that number.
            os.dup2(theirs.fileno(), fd, inheritable=False)
            self._channel.open(_stream(fd))
            os.close(fd)
        # Not asked for by each session's first cell, which is short as a rule.
        self._peak = _peak_memory()
        return self._channel.said(Ready(VERSION))

    def open(self, fd: int) -> None:
        """Begin the conversation on socket `fd`."""
        self._listen(fd)
        self._channel.send(Ready(VERSION))

    def _listen(self, fd: int) -> None:
        self._pid = _getpid()
        self._channel.open(_stream(fd))

    def _touch_pages(self) -> None:
        """Run a cell that does nothing, and send no result.

        The first write to a page after a fork copies it. A cell writes some two hundred; this has
        them copied while the host, which has what it wanted by now, is busy.
        """
        encode(self._result(0, self._run(0, b"None"), self._changes.since_last()))
        sources.drop_last()

    def obey(self) -> None:
        """Wait for one command and do it."""
        # One that takes over has to be copied as well: the next death may come before a cell ends.
        while self._copies is not None and self._copies.due:
            self._copy(self._copies)
        command = self._channel.next_command()
        if type(command) is tuple:
            self._execute(*command)
        elif type(command) is Execute:  # a chunk of its own does not hold it, whole and alone
            self._execute(command.cell, command.code)
        else:
            if self._copies is not None:
                self._copies.settle()
            self._commands[type(command)](command)

    def _copy(self, copies: Branching) -> None:
        """Have the state kept, before anything can change it."""
        rests = False
        if _thread_count() == 0:
            said = self._channel.waits(_PEACE if self._used else _PEACE_UNUSED)
            rests = not said and not self._hurried
        try:
            woken = copies.make(rests=rests)
        # Boundary: the session's code may have put anything in the place of what it takes. Without
        # a copy the session goes on, and the state before is the one to go back to.
        except Exception as error:  # noqa: BLE001
            os.write(2, f"no copy of the session was made: {type(error).__name__}\n".encode())
            return
        if woken is not None:
            self._take_over(woken)
        # What was written is this process's own still, if the copy was only brought up to date. And
        # who lets this session rest does not notice what the next cell takes longer, while pages
        # that are shared with the copy are in memory once.
        if copies.forked and self._hurried and not self._channel.waits(0):
            self._touch_pages()

    def _take_over(self, woken: Woken) -> None:
        """In a copy: be the session's worker from here on, for the last one is gone."""
        if woken.cpu_left:
            resource.setrlimit(resource.RLIMIT_CPU, (woken.cpu_left, woken.cpu_left + 1))
        lost = []
        if woken.moved is not None:
            lost = move(*woken.moved)
        lost += woken.remains.bring_back(self._namespace, woken.moved)
        if self._copies is not None:
            lost += self._copies.shared() if woken.shared is None else woken.shared
        self._channel.renew()
        if woken.seed is not None:
            seed(woken.seed)
        self._calls.forked = False
        self._calls.cell = 0
        self._listen(woken.worker)
        ready = self._channel.said(Ready(VERSION))
        self._channel.send(Restored(woken.cell, tuple(lost)), after=ready)
        if self._copies is not None:
            # Its own is this process. Without another, the next cell that dies would take with it
            # what the last one did.
            self._copies.due = True

    def rehearse(self, copies: Branching) -> None:
        """In a template: take over, by an order that waits for `copies`, and be of no use then."""
        self._copies = copies
        self._take_over(copies.rehearse_waking())
        copies.close()
        self.close()

    def close(self) -> None:
        """End the conversation."""
        self._channel.close()

    def _after_fork(self) -> None:
        # The conversation is the parent's; a child that wrote into it would tear it.
        self._channel.close()
        self._calls.forked = True

    def _configure(self, configure: Configure) -> None:
        faced = [offered for offered in configure.functions if not offered.is_plain]
        for offered in configure.functions:
            function = self._calls.function(offered.name, offered.doc)
            self._namespace.inject(offered.name, function, protected=True)
        if faced:
            self._put_faces_on(faced)
        if configure.answers is not None:
            self._answers = Answers(self._namespace, self._calls.answer)
            if configure.answers == "compatible":
                self._printed = self._answers.printed
        seed(configure.seed)
        for variable in configure.variables:
            self._bind(variable)
        # What was injected is not a change that the first cell made.
        self._changes.since_last()

    def _put_faces_on(self, faced: list[Offered]) -> None:
        # No part of the template: most sessions have none.
        from .faces import Faces

        faces = Faces(self._calls)
        for offered in faced:
            self._namespace.inject(offered.name, faces.function(offered), protected=True)
        for name, error in faces.errors.items():
            self._namespace.inject(name, error, protected=True)

    def _execute(self, cell: int, code: bytes) -> None:
        self._used = True
        if self._copies is not None:
            self._copies.due, self._copies.cell = True, cell
        self._calls.cell = cell
        started = _monotonic()
        self._hurried = started - self._answered < _HURRY
        ran = self._run(cell, code)
        if _getpid() != self._pid:
            self._end_child(ran)
        if _gettrace() is not None or _getprofile() is not None:
            _settrace(None)
            _setprofile(None)
        if self._answers is not None:
            self._answers.poll()
        self._streams.tidy()
        self._calls.cell = 0
        changes = self._changes.since_last()
        # Asked of the kernel only if the cell ran long enough to have touched much.
        self._answered = _monotonic()
        if self._answered - started > _SHORT or not self._peak:
            self._peak = _peak_memory()
        if ran is NOTHING and not changes and _PYPLOT not in _modules:
            self._channel.send_empty_result(cell, self._peak)
        else:
            self._channel.send(self._result(cell, ran, changes))

    def _result(self, cell: int, ran: Ran, changes: list[Change]) -> Result:
        figures = self._figures(cell) if _PYPLOT in _modules else ()
        return Result(cell, ran.value, ran.error, tuple(changes), figures, self._peak)

    def _figures(self, cell: int) -> tuple[bytes, ...]:
        """Open figures, drawn on the cell's clock: that takes its time, and runs code of it."""
        try:
            self._interrupts.arm(cell)
            return tuple(take_figures())
        except KeyboardInterrupt:  # as in `_run`
            self._interrupts.armed = False
            return ()
        finally:
            self._interrupts.armed = False

    def _run(self, cell: int, code: bytes) -> Ran:
        # What is no cell of the session's meets nobody.
        settle = self._copies.settle if cell and self._copies is not None else None
        try:
            self._interrupts.arm(cell)
            text = str(code, "utf-8", "surrogatepass")
            return run_cell(text, cell, self._namespace, self._printed, settle)
        except KeyboardInterrupt:
            # It struck outside of the cell's own code, while that was starting or ending. Before
            # anything is called, where another would strike and end the worker:
            self._interrupts.armed = False
            return Ran(None, ErrorInfo("KeyboardInterrupt", "", "KeyboardInterrupt\n", None))
        finally:
            self._interrupts.armed = False

    def _end_child(self, ran: Ran = NOTHING) -> NoReturn:
        """A child that the cell forked has come to the cell's end: it must not answer for it.

        So it ends as a program does that comes to the same.
        """
        self._streams.tidy()
        try:
            os.write(2, ran.parting.encode("utf-8", "backslashreplace"))
        except OSError:
            pass  # it has closed its standard error
        _exit(ran.status)

    def _bind(self, assign: Assign) -> None:
        value = values.read(assign, self._calls.memfd)
        self._namespace.globals[assign.name] = value
        if self._answers is not None and assign.name == "answer":
            self._answers.forget()

    def _assign(self, assign: Assign) -> None:
        try:
            self._bind(assign)
        except (MemoryError, ValueError, RecursionError, OSError) as error:
            reason = ": ".join(filter(None, (type(error).__name__, str(error))))
            self._channel.send(Failed("too large", reason))
            return
        self._changes.since_last()
        if self._copies is not None:
            self._copies.due = True
        self._channel.send(Value(b"null"))

    def _fetch(self, fetch: Fetch) -> None:
        if fetch.name == ASK_FOR_BRANCH and self._copies is not None:
            self._branch(self._copies)
        elif fetch.name not in self._namespace.globals:
            self._has_none(fetch.name)
        else:
            self._channel.send(values.write(self._namespace.globals[fetch.name]))

    def _has_none(self, name: str) -> None:
        self._channel.send(Failed("unknown", f"no variable {name!r}"))

    def _branch(self, copies: Branching) -> None:
        woken = copies.branch(lambda: self._has_none(ASK_FOR_BRANCH), _complain)
        if woken is not None:
            self._take_over(woken)
            copies.begin()
            # Many branches are never asked for anything, and need no copy.
            self._channel.waits(-1)

    def _list(self, command: ListVariables) -> None:
        self._channel.send(Variables(tuple(self._changes.variables())))

    def _carry_out(self, errand: Save | Load) -> None:
        """Save or load the namespace: as a cell, it may be interrupted, and ends with a result."""
        self._used = True
        if self._copies is not None:
            self._copies.due = True
        try:
            fd = self._calls.memfd()
            self._interrupts.arm()
            ran = Ran(self._checkpoint(errand, fd), None)
        # Boundary: pickles run code of the user's, which may raise anything.
        except BaseException as error:  # noqa: BLE001
            self._interrupts.armed = False  # as in `_run`
            ran = Ran(None, describe(error, 0))
        finally:
            self._interrupts.armed = False
        if _getpid() != self._pid:
            self._end_child()
        self._streams.tidy()
        self._channel.send(self._result(errand.cell, ran, []))

    def _checkpoint(self, errand: Save | Load, fd: int) -> str:
        # What only checkpoints need is no part of the template.
        try:
            if type(errand) is Save:
                from .saving import save

                return save(self._namespace, self._answers, fd, errand.size)
            from .loading import load

            assert type(errand) is Load
            missing = load(self._namespace, self._answers, fd, json.loads(errand.manifest))
            # What was restored is not a change that the first cell made.
            self._changes.since_last()
            return missing
        finally:
            try:
                os.close(fd)
            except OSError:
                pass  # closed by what a pickle ran


def _peak_memory() -> int:
    """Bytes, of this process."""
    return _getrusage(_SELF).ru_maxrss * 1024


def _stream(fd: int) -> socket.socket:
    # Named, so that the kernel need not be asked what it is.
    return socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, fileno=fd)


def _complain(error: BaseException) -> None:
    """Say, as output of the next cell, what code of the session raised while none ran."""
    os.write(2, f"between cells, a signal handler raised {type(error).__name__}\n".encode())
