"""How init brings a session back: it ends what runs, and names a waiting copy of the worker.

Init's end of `worker.copies`. What the copies' table says it takes for a suggestion only: it wakes
nothing but a process of the session that is there, and whatever that is then speaks to the host on
the socket that it is given, as any worker of that session may.
"""

from __future__ import annotations

import os
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

# Seconds. Reading what it may keep, or writing it, takes a tenth of one.
_KEEPER_TIMEOUT = 10.0


class Revived(NamedTuple):
    """What came of it: the copy that was woken, 0 for none; what the worker before it left.

    That is its CPU seconds, and names of files that could not be brought back.
    """

    pid: int
    ended: bool  # the worker before
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
        self._unkept = False  # once files could not be kept, no more are
        self._states = States()
        # A stream, because a session without a network may have no other (jail/syscalls.py).
        self._ours, theirs = socket.socketpair()
        # Init holds the copies' end too: what it says to one that is gone must not be an error.
        high_fd = fcntl(theirs.fileno(), F_DUPFD_CLOEXEC, high + 1)
        self._theirs = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, high_fd)
        theirs.close()

    def __iter__(self) -> Iterator[int]:
        return iter((self._ours.fileno(), self._theirs.fileno()))

    def fileno(self) -> int:
        """Readable when a worker asks for its files to be kept."""
        return self._ours.fileno()

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
        self._keeper, self._unkept = None, False

    def hear(self) -> None:
        """A worker waits until its files are kept."""
        with suppress(BlockingIOError):
            asked = self._ours.recv(KEEP.size, socket.MSG_DONTWAIT)
            if len(asked) == KEEP.size:
                self.keep(*KEEP.unpack(asked))
                # Whoever asks and does not read must not keep init waiting.
                self._ours.send(KEPT, socket.MSG_DONTWAIT)

    def keep_for_host(self, cell: int) -> None:
        """As `keep`: the host has changed them. The worker is told, which would not notice."""
        self.keep(cell)
        self._states.files_changed()

    def keep(self, cell: int) -> None:
        """Have the files as they are now kept as those after `cell`."""
        if self._unkept:
            return
        # What was there before the first cell is always one to go back to: it needs no copy.
        needed = [0, *(row[1] for row in self._rows())]
        request = {"op": "keep", "cell": cell, "needed": needed}
        self._unkept = keeper.ask(self._keepers(), request) != []

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
        if self._unkept:
            return ["files: they could not be kept, and are as the code left them"]
        lost = keeper.ask(self._keepers(), {"op": "restore", "cell": cell})
        self._states.files_changed()
        return ["files: their keeper is gone"] if lost is None else lost

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
        kept = [row for row in self._rows() if cell is None or row[1] <= cell]
        kept = [row for row in kept if _waits(row[0])]
        found = bool(kept) and cell in (None, kept[-1][1])
        if not found and worker:
            return Revived(0, False, 0.0, [])
        if not found:
            kept = []
        self.halt()
        spared = {pid for pid, _ in kept}
        if self._keeper is not None:
            spared.add(self._keeper[0])
        cpu = self._end_all(spared, worker)
        alive = [row for row in kept if _signal(row[0], signal.SIGCONT)]
        if not kept or kept[-1] not in alive:
            return Revived(0, True, cpu, [])
        # The others are its own to go back to. What it knew when it was made is gone in part.
        pid, after = alive.pop()
        self._states.write(alive)
        for end in (self._ours, self._theirs):
            _empty(end)  # of what a worker or a copy that is gone has left there
        lost = self._restore_files(after)
        socket.send_fds(self._ours, [ORDER.pack(pid, cpu_left)], [fd])
        _signal(pid, WAKE)
        return Revived(pid, True, cpu, lost)

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
        rows = {pid: cell for pid, cell in self._states.read() if pid > 1 and pid != me}
        return list(rows.items())

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


def _waits(pid: int) -> bool:
    """Whether `pid` is a child of this process, and has not ended."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
    except ChildProcessError:
        return False


def _everybody() -> list[int]:
    """All processes of this pid namespace but this one, which is its first."""
    return [int(name) for name in os.listdir("/proc") if name.isdecimal() and name != "1"]


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
