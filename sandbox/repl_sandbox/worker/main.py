"""The worker's loop: read a command, do it, answer, until the host is gone."""

from __future__ import annotations

import _thread
import gc
import os
import resource
import socket
from typing import TYPE_CHECKING, NoReturn

from ..wire.messages import VERSION, Execute, Fetch, Ready, Restored
from .branching import ASK_FOR_BRANCH, Branching
from .cells import peak_memory
from .channel import Disconnected
from .copies import Recovery, Woken
from .moving import copy, enter
from .questions import Questions
from .remains import Remains
from .seeding import seed
from .states import States
from .workspace_modules import MODULES

if TYPE_CHECKING:
    from ..policies.rules import Rules

_exit = os._exit
_thread_count = _thread._count  # as the tests of threading use it

# Milliseconds in which a host that opened a session for a cell has sent it.
_SOON = 2
# Milliseconds that a worker is left in peace after its answer, before it is copied: a session that
# is closed by then, as those of one cell are, is spared the copy.
_PEACE = 1
# After so many without a word the session rests, though its cells came in a hurry: see `_HURRY`.
_REST = 100
# The same before any code of the session has run. What it has is from the host, it may never be
# used, and a model thinks for longer than this. A cell that comes sooner waits for its copy.
_PEACE_UNUSED = 1000


class Worker(Questions):
    """One namespace and the conversation about it.

    Made once, in the template; each session's process is a fork of that and calls `serve`.
    """

    def __init__(self, rules: Rules | None = None) -> None:
        super().__init__(rules)
        self._rules = rules
        # Whether there is more than one processor for it and the host.
        self._has_company = len(os.sched_getaffinity(0)) > 1

    def share(self, objects: dict[str, object]) -> None:
        """In a template: bind these for its sessions, as variables that were always there."""
        self._namespace.globals.update(objects)
        self._changes.since_last()
        self._peak = peak_memory()

    def watch_streams(self) -> None:
        """From here on its standard streams are a session's."""
        self._streams.watches = True

    def import_from(self, workspace: str) -> None:
        """Before it begins: the modules of this folder are its session's."""
        if self._rules is None or self._rules.check_module is not None:
            MODULES.folder = workspace

    def follow_forks(self) -> None:
        """In a template: see to what the session's code forks."""
        os.register_at_fork(after_in_child=self._after_fork)

    def serve(self, fd: int, states: States, recovery: Recovery | None) -> NoReturn:
        """Obey the host on socket `fd` until it closes the conversation; then the process ends.

        `states`, `recovery`: as of `belong_to`.
        """
        self.belong_to(fd, states, recovery)
        try:
            self.open(fd)
            if not self._channel.waits(_SOON):
                self._touch_pages()
            self._obey_always()
        except Disconnected:
            _exit(0)

    def serve_on(self) -> None:
        """As `serve`, for who was made to `belong_to` a session before it was forked.

        What `prepare` returned was sent, and a command has come. Returns when the host has closed
        the conversation.
        """
        self._begin()
        try:
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
        self._peak = peak_memory()
        return self._channel.said(Ready(VERSION))

    def open(self, fd: int) -> None:
        """Begin the conversation on socket `fd`."""
        self._listen(fd)
        self._channel.send(Ready(VERSION))

    def _listen(self, fd: int) -> None:
        self._begin()
        self._channel.open(_stream(fd))

    def obey(self) -> None:
        """Wait for one command and do it."""
        # One that takes over has to be copied as well: the next death may come before a cell ends.
        while self._copies is not None and self._copies.due:
            self._copy(self._copies)
        command = self._channel.next_command()
        if type(command) is tuple:
            cell, code = command
            result = self._execute(cell, code)
            self._channel.end_cell(result)
        elif type(command) is Execute:  # a chunk of its own does not hold it, whole and alone
            result = self._execute(command.cell, command.code)
            self._channel.end_cell(result)
        else:
            if self._copies is not None:
                self._copies.settle()
            self._questions[type(command)](command)

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
        # A host that lets the session rest does not notice that the next cell takes longer, while
        # pages that the worker shares with its copy are in memory once.
        if self._hurried and not self._channel.waits(0):
            self._touch_pages()
            if _thread_count() == 0 and not self._channel.waits(_REST):
                self._hurried, copies.due = False, True  # another copy, which shares all pages

    def _take_over(self, woken: Woken) -> None:
        """In a copy: be the session's worker from here on, for the last one is gone."""
        if woken.cpu_left:
            resource.setrlimit(resource.RLIMIT_CPU, (woken.cpu_left, woken.cpu_left + 1))
        lost = []
        if woken.moved is not None:
            if not woken.said:
                lost = copy(*woken.moved)
            enter(*woken.moved)
            MODULES.move(woken.moved[1])
        assert self._copies is not None
        lost += self._copies.bring_back(woken, self._namespace)
        self._channel.renew()
        if woken.seed is not None:
            seed(woken.seed)
        self._calls.forked = False
        self._calls.cell = 0
        self._listen(woken.worker)
        ready, restored = self._channel.said(Ready(VERSION)), Restored(woken.cell, tuple(lost))
        if woken.said:
            self._channel.said(restored)
        else:
            self._channel.send(restored, after=ready)
        # Its own copy is this process. Without another, the next cell that dies would take with it
        # what the last one did.
        self._copies.due = True

    def rehearse_branch(self, copies: Branching) -> None:
        """In a template: fork a branch that an order waits for, where forks fail."""
        copies.branch(_nothing, _complain, self._foresee)

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

    def _fetch(self, fetch: Fetch) -> None:
        if fetch.name == ASK_FOR_BRANCH and self._copies is not None:
            self._branch(self._copies)
        else:
            super()._fetch(fetch)

    def _branch(self, copies: Branching) -> None:
        woken = copies.branch(lambda: self._has_none(ASK_FOR_BRANCH), _complain, self._foresee)
        if woken is None:
            return
        try:
            self._take_over(woken)
        # Boundary: there must be no half of a branch that hears its host.
        except BaseException:  # noqa: BLE001
            _exit(1)
        # Many branches are never asked for anything, and need no copy.
        self._channel.waits(-1)

    def _foresee(self, lacks: Remains) -> list[str] | None:
        return lacks.foresee(self._namespace)


def _nothing() -> None:
    """What a host is told that is none."""


def _stream(fd: int) -> socket.socket:
    # Named, so that the kernel need not be asked what it is.
    return socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, fileno=fd)


def _complain(error: BaseException) -> None:
    """Say, as output of the next cell, what code of the session raised while none ran."""
    os.write(2, f"between cells, a signal handler raised {type(error).__name__}\n".encode())
