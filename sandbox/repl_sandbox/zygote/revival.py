"""How init brings a session back: it ends what runs, and names a waiting copy of the worker.

Init's end of `worker.copies`. What the copies' table says it takes for a suggestion only: it wakes
nothing but a process of the session that is there, and whatever that is then speaks to the host on
the socket that it is given, as any worker of that session may.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import time
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from fcntl import F_DUPFD_CLOEXEC, fcntl
from typing import NamedTuple

from ..jail import folders, libc, mounts, processes
from ..jail.recipe import Jail
from ..worker.copies import BRANCHED, KEEP, KEPT, ORDER, WAKE, WORD, Recovery
from ..worker.states import Row, States
from . import keeper
from .belonging import is_child

# Seconds, less than the host waits. Reading or writing what it may keep takes a tenth of one, and a
# copy that is woken forks in milliseconds.
_KEEPER_TIMEOUT = 5.0
_BRANCH_TIMEOUT = 3.0
# Milliseconds after which init looks whether the copy is still there.
_BRANCH_LOOK = 20
# So far below the worker's socket lies that of its copies.
_BELOW = 100


class Revived(NamedTuple):
    """The copy that was woken, 0 for none; CPU seconds of the worker before it; files it lacks."""

    pid: int
    cpu: float
    lost: list[str]


class Revival:
    """Of one session. Iterating gives the descriptors that its init keeps.

    The files of its workspace are those of its state: a `keeper` has what they were.
    """

    def __init__(self, jail: Jail, high: int, states: States | None = None) -> None:
        self.jail = jail
        self._folder = jail.folder
        # What "all processes" are where the session has branches: None for all there are.
        self.members: Callable[[], list[int]] | None = None
        self._kept = jail.states
        self.trusted: set[int] = set()  # processes of init's own code
        self._keeper: tuple[int, socket.socket] | None = None
        self._keeping = False  # whether a worker waits, and the keeper's answer is due
        self._unkept = False  # once the keeper is gone, no more are kept
        self._removed = False  # whether all files were, for want of room
        self._states = States() if states is None else states
        self._high = high
        self._open_pair()

    def _open_pair(self) -> None:
        self._shut = False  # by the session's code, which holds an end of it
        # A stream, because a session without a network may have no other (jail/syscalls.py).
        self._ours, theirs = socket.socketpair()
        # Init holds the copies' end too: what it says to one that is gone must not be an error.
        high_fd = fcntl(theirs.fileno(), F_DUPFD_CLOEXEC, self._high - _BELOW)
        self._theirs = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, high_fd)
        theirs.close()

    def __iter__(self) -> Iterator[int]:
        return iter((self._ours.fileno(), self._theirs.fileno()))

    @property
    def orders(self) -> int:
        """The descriptor that workers and copies hold."""
        return self._theirs.fileno()

    def close(self) -> None:
        """Let go of both ends."""
        self._ours.close()
        self._theirs.close()
        self._states.close()

    def listen(self, poller: select.poll) -> None:
        """Have `poller` wake init when there is something for `hear`."""
        self._poller = poller
        if self._keeping:
            assert self._keeper is not None
            poller.register(self._keeper[1], select.POLLIN)
        elif not self._shut:
            poller.register(self._ours, select.POLLIN)

    def remove_files(self) -> None:
        """Empty the workspace of a branch that has ended."""
        with suppress(OSError):
            return os.rmdir(self.jail.home)
        self._settle(told=False)
        if keeper.ask(self._keepers(), {"op": "restore", "cell": -1}) and self._keeper is not None:
            keeper.answer(self._keeper[1])
            _signal(self._keeper[0], signal.SIGKILL)
        with suppress(OSError):
            os.rmdir(self.jail.home)

    def recovery(self) -> Recovery:
        """In a worker: its end."""
        return Recovery(
            self._states,
            self._theirs,
            self._kept,
            self._workspace(),
            libc.fork_beside,
            libc.fork_beside_threads,
        )

    def _workspace(self) -> str:
        own = f"{self._folder}/{folders.WORKSPACE}" if self._folder else mounts.WORKSPACE
        return self.jail.home or own

    def forget(self) -> None:
        """There are no copies any more, and no keeper."""
        self._states.write(())
        self._stop_waiting()
        if self._keeper is not None:
            self._keeper[1].close()
        self._keeper, self._unkept = None, False
        if self._shut:
            self._ours.close()
            self._theirs.close()
            self._open_pair()
            self._poller.register(self._ours, select.POLLIN)

    def files_are_removed(self) -> None:
        """All of them were, and their directory is another now."""
        self._stop_waiting()
        if self._keeper is not None:
            self._keeper[1].close()
        self._keeper, self._removed = None, True

    def hear(self, ready: Container[int]) -> None:
        """A worker waits until its files are kept. Init does not: the host may want something."""
        ours = self._ours.fileno() in ready
        if not ours and (self._keeper is None or self._keeper[1].fileno() not in ready):
            return
        if self._keeping:
            if self._keeper is not None and _readable(self._keeper[1]):
                self._settle()
            return
        with suppress(BlockingIOError):
            said = b"" if self._shut else self._ours.recv(WORD.size, socket.MSG_DONTWAIT)
            if not said and not self._shut:
                self._shut = True
                self._poller.unregister(self._ours)
            kind, cell = WORD.unpack(said) if len(said) == WORD.size else (-1, 0)
            if kind == KEEP:
                self._begin(cell)
                if not self._keeping:
                    self._tell_worker()

    def _word(self) -> tuple[int, int]:
        """What a worker or a copy says; BlockingIOError if none does."""
        said = self._ours.recv(WORD.size, socket.MSG_DONTWAIT)
        return WORD.unpack(said) if len(said) == WORD.size else (-1, 0)

    def keep_for_host(self, cell: int) -> None:
        """Have the files kept as those after `cell`, for the host has changed them.

        The worker is told, which would not notice.
        """
        self._settle()
        self._begin(cell)
        self._settle(told=False)
        self._states.files_changed()

    def _begin(self, cell: int) -> None:
        # What was there before the first cell is always one to go back to: it needs no copy.
        needed = [0, *(row[1] for row in self.rows())]
        request = {"op": "keep", "cell": cell, "needed": needed}
        if self._unkept or not keeper.ask(self._keepers(), request):
            self._unkept = True
            return
        assert self._keeper is not None
        self._keeping = True
        # What else workers ask for waits meanwhile, however much that is.
        if not self._shut:
            self._poller.unregister(self._ours)
        self._poller.register(self._keeper[1], select.POLLIN)

    def _settle(self, *, told: bool = True) -> None:
        """Take the keeper's answer, if one is due; the worker is `told` that it may go on."""
        if self._keeping:
            assert self._keeper is not None
            self._unkept = keeper.answer(self._keeper[1]) is None
            self._stop_waiting()
            if told:
                self._tell_worker()

    def _stop_waiting(self) -> None:
        if self._keeping:
            assert self._keeper is not None
            self._keeping = False
            self._poller.unregister(self._keeper[1])
            if not self._shut:
                self._poller.register(self._ours, select.POLLIN)

    def _tell_worker(self) -> None:
        # Whoever asks and does not read must not keep init waiting.
        with suppress(BlockingIOError, BrokenPipeError):
            self._ours.send(KEPT, socket.MSG_DONTWAIT)

    def _keepers(self) -> socket.socket | None:
        if self._keeper is None:
            ours, theirs = socket.socketpair()
            try:
                pid = libc.fork()
            except OSError:
                return None
            if pid == 0:
                signal.set_wakeup_fd(-1)
                keeper.be_keeper(self.jail, theirs)
            theirs.close()
            ours.settimeout(_KEEPER_TIMEOUT)
            self._keeper = pid, ours
            self.trusted.add(pid)
        return self._keeper[1]

    def _restore_files(self, cell: int) -> list[str]:
        if self._removed:
            self._removed = False
            return ["files: they took more room than they may, and all were removed"]
        self._settle(told=False)
        lost: list[str] | None = None
        if not self._unkept and keeper.ask(self._keepers(), {"op": "restore", "cell": cell}):
            assert self._keeper is not None
            lost = keeper.answer(self._keeper[1])
        self._states.files_changed()
        if lost is None:
            self._unkept = True
            return ["files: their keeper is gone or too slow; they are as the code left them"]
        return lost

    def halt(self) -> None:
        """The worker is dead: stop all that it left, until the host says what is to be."""
        if self.members is not None:
            processes.stop_all(self.members)
        elif self._folder:
            processes.stop_children()
        else:
            _signal_all(signal.SIGSTOP)
        for pid in self.trusted:
            _signal(pid, signal.SIGCONT)

    def wake(self, worker: int, cell: int | None, cpu_left: int, fd: int) -> Revived:
        """End everything but the copy made after `cell` (None: the latest) and those before it.

        `worker` is ended as well, 0 if it is dead. The copy gets `fd` to speak on. Nothing is done
        to a living worker if there is no such copy.
        """
        rows = self.rows()
        index = _index(rows, cell)
        if index is None and worker:
            return Revived(0, 0.0, [])
        # A copy that is woken goes on with what init says of those before it.
        kept = [] if index is None else rows[: index + 1]
        self.halt()
        spared = {pid for pid, _ in kept}
        if self._keeper is not None:
            spared.add(self._keeper[0])
        cpu = self._end_all(spared, worker)
        # The earlier ones stay stopped until it is their turn.
        if not kept or not _signal(kept[-1][0], signal.SIGCONT):
            return Revived(0, cpu, [])
        pid, after = kept[-1]
        # The others are its own to go back to. What it knew when it was made is gone in part.
        self._states.write([row for row in kept[:-1] if is_child(row[0])])
        lost = self._restore_files(after)
        for end in (self._ours, self._theirs):
            _empty(end)  # of what a worker or a copy that is gone has left there
        # First, for one whom the code has woken before must not go on before this is sent.
        _signal(pid, WAKE)
        try:
            socket.send_fds(self._ours, [ORDER.pack(pid, cpu_left, -1, 0)], [fd])
        except BrokenPipeError:
            return Revived(0, cpu, [])
        return Revived(pid, cpu, lost)

    def end_members(self, kept: set[int], worker: int) -> float:
        """As `_end_all`, of this line alone; others that have died meanwhile are not reaped."""
        assert self.members is not None
        cpu = 0.0
        members = self.members
        while others := processes.stop_all(lambda: set(members()) - kept):
            for pid in others:
                _signal(pid, signal.SIGKILL)
            for pid in others:
                # Of what is not a child the parent dies, and then it is one, and met again.
                with suppress(ChildProcessError):
                    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
            if worker in others:
                _, _, usage = os.wait4(worker, 0)
                cpu, worker = usage.ru_utime + usage.ru_stime, 0
        return cpu

    def fork_branch(
        self, cell: int, seed: int, workspace: str, descriptors: Sequence[int]
    ) -> tuple[int, Revival] | None:
        """Have the copy made after `cell` fork a branch; its process id, and what revives it.

        `seed`: of its random numbers, -1 to go on with those of the copy. `descriptors`: its worker
        socket, stdout, stderr, table of copies.
        """
        rows = self.rows()
        index = _index(rows, cell)
        if index is None:
            return None
        worker, stdout, stderr, states = descriptors
        path = os.fsencode(workspace)
        jail = replace(self.jail, home=workspace, kept=set(), held={})
        revival = Revival(jail, self._high, States(states))
        copy = rows[index][0]
        order = ORDER.pack(copy, 0, seed, len(path)) + path
        given = [worker, revival.orders, states, stdout, stderr]
        self._settle()
        pid = self._order_branch(copy, order, given)
        if pid is None:
            revival.close()
            return None
        return pid, revival

    def _order_branch(self, copy: int, order: bytes, given: Sequence[int]) -> int | None:
        """The process that the copy says it has forked; it may be any child of init's."""
        for end in (self._ours, self._theirs):
            _empty(end)  # of the late word of a copy that was stopped, and of what nobody has read
        try:
            # Code of the session may keep the other end from being read, and must not hold up init.
            socket.send_fds(self._ours, [order], given, socket.MSG_DONTWAIT)
        except OSError:
            return None
        _signal(copy, signal.SIGCONT)
        _signal(copy, WAKE)
        poller = select.poll()
        poller.register(self._ours, select.POLLIN)
        until = time.monotonic() + _BRANCH_TIMEOUT
        while time.monotonic() < until and is_child(copy):
            if not poller.poll(_BRANCH_LOOK):
                continue
            kind, number = self._word()
            if kind != KEEP:
                ours = kind == BRANCHED and number not in (copy, *self.trusted)
                return number if ours and is_child(number) else None
        return None

    def clear(self) -> list[str]:
        """End everything, and put the files back that were there before the first cell.

        Returns those that could not be.
        """
        self.halt()
        self._end_all(set() if self._keeper is None else {self._keeper[0]}, 0)
        self._states.write(())
        return self._restore_files(0)

    def rows(self) -> list[Row]:
        """The end of the table, without what cannot be: each is a child, and none is init's own.

        No more than there may be, for whoever is named is not ended with the others: of each state
        that is kept, of the current one, and of one that just takes another's place.
        """
        said = {pid: cell for pid, cell in self._states.read() if pid not in self.trusted}
        return [(pid, cell) for pid, cell in said.items() if is_child(pid)][-self._kept - 2 :]

    def _end_all(self, kept: set[int], worker: int) -> float:
        """Kill and reap all processes of the session but `kept`; CPU seconds of the `worker`."""
        if self.members is not None:
            return self.end_members(kept, worker)
        if self._folder:
            return processes.end_children(kept, worker)
        cpu = 0.0
        while others := [pid for pid in _everybody() if pid not in kept]:
            for pid in others:
                _signal(pid, signal.SIGKILL)
            ended, _, usage = os.wait4(-1, 0)
            if ended == worker:
                cpu = usage.ru_utime + usage.ru_stime
        return cpu


def _index(rows: list[Row], cell: int | None) -> int | None:
    found = [index for index, row in enumerate(rows) if cell in (None, row[1])]
    return found[-1] if found else None


def _everybody() -> list[int]:
    """All processes of this pid namespace but this one, which is its first."""
    return [int(name) for name in os.listdir("/proc") if name.isdecimal() and name != "1"]


def _readable(sock: socket.socket) -> bool:
    poller = select.poll()
    poller.register(sock, select.POLLIN)
    return bool(poller.poll(0))


def _empty(sock: socket.socket) -> None:
    with suppress(BlockingIOError):
        for _ in range(_MOST_READS):  # who goes on filling it does not keep init at it
            sock.recv(4096, socket.MSG_DONTWAIT)


_MOST_READS = 1000


def _signal_all(number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(-1, number)


def _signal(pid: int, number: int) -> bool:
    """Whether there is such a process."""
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True
