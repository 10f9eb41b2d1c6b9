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
from collections.abc import Iterator
from contextlib import suppress
from fcntl import F_DUPFD_CLOEXEC, fcntl
from typing import NamedTuple

from ..jail import folders, libc, mounts, processes
from ..jail.recipe import Jail
from ..worker.copies import KEEP, KEPT, ORDER, WAKE, Recovery
from ..worker.states import Row, States
from . import keeper

# Seconds, less than the host waits. Reading or writing what it may keep takes a tenth of one.
_KEEPER_TIMEOUT = 5.0


class Revived(NamedTuple):
    """The copy that was woken, 0 for none; CPU seconds of the worker before it; files it lacks."""

    pid: int
    cpu: float
    lost: list[str]


class Revival:
    """Of one session. Iterating gives the descriptors that its init keeps.

    The files of its workspace are those of its state: a `keeper` has what they were.
    """

    def __init__(self, jail: Jail, high: int) -> None:
        self._jail = jail
        self._folder = jail.folder
        self._kept = jail.states
        self.trusted: set[int] = set()  # processes of init's own code
        self._keeper: tuple[int, socket.socket] | None = None
        self._keeping = False  # whether a worker waits, and the keeper's answer is due
        self._unkept = False  # once the keeper is gone, no more are kept
        self._removed = False  # whether all files were, for want of room
        self._states = States()
        self._high = high
        self._open_pair()

    def _open_pair(self) -> None:
        self._shut = False  # by the session's code, which holds an end of it
        # A stream, because a session without a network may have no other (jail/syscalls.py).
        self._ours, theirs = socket.socketpair()
        # Init holds the copies' end too: what it says to one that is gone must not be an error.
        high_fd = fcntl(theirs.fileno(), F_DUPFD_CLOEXEC, self._high + 1)
        self._theirs = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, high_fd)
        theirs.close()

    def __iter__(self) -> Iterator[int]:
        return iter((self._ours.fileno(), self._theirs.fileno()))

    def listen(self, poller: select.poll) -> None:
        """Have `poller` wake init when there is something for `hear`."""
        self._poller = poller
        poller.register(self._ours, select.POLLIN)

    def recovery(self) -> Recovery:
        """In a worker: its end."""
        return Recovery(
            self._states,
            self._theirs,
            self._kept,
            f"{self._folder}/{folders.WORKSPACE}" if self._folder else mounts.WORKSPACE,
            libc.fork_beside,
            libc.fork_beside_threads,
        )

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

    def hear(self) -> None:
        """A worker waits until its files are kept. Init does not: the host may want something."""
        if self._keeping:
            if self._keeper is not None and _readable(self._keeper[1]):
                self._settle()
            return
        with suppress(BlockingIOError):
            asked = b"" if self._shut else self._ours.recv(KEEP.size, socket.MSG_DONTWAIT)
            if not asked and not self._shut:
                self._shut = True
                self._poller.unregister(self._ours)
            if len(asked) == KEEP.size:
                self._begin(*KEEP.unpack(asked))
                if not self._keeping:
                    self._tell_worker()

    def keep(self) -> None:
        """Have the files as they are now kept as those after the latest copy."""
        self._settle()
        cells = [row[1] for row in self._rows()]
        self._begin(cells[-1] if cells else 0)
        self._settle(told=False)

    def _begin(self, cell: int) -> None:
        cells = [row[1] for row in self._rows()]
        request = {"op": "keep", "cell": cell, "needed": cells}
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
                keeper.be_keeper(self._jail, theirs)
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
        if lost is None:
            self._unkept = True
            return ["files: their keeper is gone or too slow; they are as the code left them"]
        return lost

    def halt(self) -> None:
        """The worker is dead: stop all that it left, until the host says what is to be."""
        if self._folder:
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
        rows = self._rows()
        index = _index(rows, cell)
        if index is None and worker:
            return Revived(0, 0.0, [])
        kept = [] if index is None else rows[: index + 1]
        self.halt()
        spared = {pid for pid, _ in kept}
        if self._keeper is not None:
            spared.add(self._keeper[0])
        cpu = self._end_all(spared, worker)
        alive = [pid for pid, _ in kept if _signal(pid, signal.SIGCONT)]
        if not kept or kept[-1][0] not in alive:
            return Revived(0, cpu, [])
        pid, after = kept[-1]
        lost = self._restore_files(after)
        for end in (self._ours, self._theirs):
            _empty(end)  # of what a worker or a copy that is gone has left there
        # First, for one whom the code has woken before must not go on before this is sent.
        _signal(pid, WAKE)
        try:
            socket.send_fds(self._ours, [ORDER.pack(pid, cpu_left)], [fd])
        except BrokenPipeError:
            return Revived(0, cpu, [])
        return Revived(pid, cpu, lost)

    def clear(self) -> list[str]:
        """End everything, and put the files back that were there before the first cell.

        Returns those that could not be.
        """
        self.halt()
        self._end_all(set() if self._keeper is None else {self._keeper[0]}, 0)
        self._states.write(())
        return self._restore_files(0)

    def _rows(self) -> list[Row]:
        """The table, without what cannot be: each is another process, and none is this one."""
        me = os.getpid()
        return list(
            {pid: cell for pid, cell in self._states.read() if pid > 1 and pid != me}.items()
        )

    def _end_all(self, kept: set[int], worker: int) -> float:
        """Kill and reap all processes of the session but `kept`; CPU seconds of the `worker`."""
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
        while sock.recv(4096, socket.MSG_DONTWAIT):
            pass


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
