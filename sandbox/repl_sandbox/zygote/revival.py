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

from ..jail import libc, processes
from ..worker.copies import ORDER, WAKE, Recovery
from ..worker.states import Row, States


class Revived(NamedTuple):
    """The copy that was woken, 0 for none, and the CPU seconds of the worker that it follows."""

    pid: int
    cpu: float


class Revival:
    """Of one session. Iterating gives the descriptors that its init keeps."""

    def __init__(self, folder: str, states: int, high: int) -> None:
        self._folder = folder
        self._kept = states
        self._states = States()
        # A stream, because a session without a network may have no other (jail/syscalls.py).
        self._ours, theirs = socket.socketpair()
        # Init holds the copies' end too: what it says to one that is gone must not be an error.
        high_fd = fcntl(theirs.fileno(), F_DUPFD_CLOEXEC, high)
        self._theirs = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, high_fd)
        theirs.close()

    def __iter__(self) -> Iterator[int]:
        return iter((self._ours.fileno(), self._theirs.fileno()))

    def recovery(self) -> Recovery:
        """In a worker: its end."""
        return Recovery(
            self._states, self._theirs, self._kept, libc.fork_beside, libc.fork_beside_threads
        )

    def forget(self) -> None:
        """There are no copies any more."""
        self._states.write(())

    def halt(self) -> None:
        """The worker is dead: stop all that it left, until the host says what is to be."""
        if self._folder:
            processes.stop_children()
        else:
            _signal_all(signal.SIGSTOP)

    def wake(self, worker: int, cell: int | None, cpu_left: int, fd: int) -> Revived:
        """End everything but the copy made after `cell` (None: the latest) and those before it.

        `worker` is ended as well, 0 if it is dead. The copy gets `fd` to speak on. Nothing is done
        to a living worker if there is no such copy.
        """
        rows = self._rows()
        index = _index(rows, cell)
        if index is None and worker:
            return Revived(0, 0.0)
        kept = [] if index is None else rows[: index + 1]
        self.halt()
        cpu = self._end_all({pid for pid, _ in kept}, worker)
        alive = [pid for pid, _ in kept if _signal(pid, signal.SIGCONT)]
        if not kept or kept[-1][0] not in alive:
            return Revived(0, cpu)
        pid = kept[-1][0]
        socket.send_fds(self._ours, [ORDER.pack(pid, cpu_left)], [fd])
        _signal(pid, WAKE)
        return Revived(pid, cpu)

    def _rows(self) -> list[Row]:
        """The table, without what cannot be: each is another process, and none is this one."""
        me, rows = os.getpid(), {}
        for pid, cell in self._states.read():
            if pid > 1 and pid != me:
                rows[pid] = cell
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


def _index(rows: list[Row], cell: int | None) -> int | None:
    found = [index for index, row in enumerate(rows) if cell in (None, row[1])]
    return found[-1] if found else None


def _everybody() -> list[int]:
    """All processes of this pid namespace but this one, which is its first."""
    return [int(name) for name in os.listdir("/proc") if name.isdecimal() and name != "1"]


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
