"""`SnapshotChannel`: messages between init and a session's workers and snapshots.

One pair of sockets; each worker and each snapshot has the same end. Code of the session has that
end too: it may send anything, read messages for others, or shut it down.
"""

from __future__ import annotations

import _socket  # the public module's class is more pages to copy, in each session
import array
import os
import select
import socket
from collections.abc import Container, Iterator, Sequence
from contextlib import suppress
from fcntl import F_DUPFD_CLOEXEC, fcntl

from ..protocol.control import KEPT, WORKER_MESSAGE

# The distance below the worker's socket at which that of its snapshots lies.
_DISTANCE = 100
_MAX_READS = 1000


class SnapshotChannel:
    """Both ends: init also holds the other one, so that sending to a dead process is no error.

    Iterating gives the descriptors of both.
    """

    def __init__(self, worker_fd: int) -> None:
        """`worker_fd`: the number of a worker's socket."""
        self._worker_fd = worker_fd
        self._open()

    @classmethod
    def at(cls, worker_fd: int, init_end: int, worker_end: int) -> SnapshotChannel:
        """The pair that a session will have at these numbers, which are free here."""
        channel = cls.__new__(cls)
        channel._worker_fd = worker_fd
        # While the objects with these numbers are made.
        pair = _socket.socketpair()
        for end, fd in zip(pair, (init_end, worker_end), strict=True):
            os.dup2(end.fileno(), fd, inheritable=False)
            end.close()
        channel._take(_socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, init_end), worker_end)
        os.close(init_end)
        os.close(worker_end)
        return channel

    def _open(self) -> None:
        # A stream, because a session without a network may have no other
        # (jail/syscalls.py).
        init_end, worker_end = _socket.socketpair()
        moved = fcntl(worker_end.fileno(), F_DUPFD_CLOEXEC, self._worker_fd - _DISTANCE)
        worker_end.close()
        self._take(init_end, moved)

    def _take(self, init_end: _socket.socket, worker_end: int) -> None:
        self._shut = False
        self._init_end = init_end
        self.worker_end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, worker_end)
        self._descriptors = init_end.fileno(), worker_end

    def __iter__(self) -> Iterator[int]:
        return iter(self._descriptors)

    def close(self) -> None:
        """Close both ends."""
        self._init_end.close()
        self.worker_end.close()

    def forget(self) -> None:
        """Forget both ends, which are open in no process that has this object."""
        self._init_end.detach()
        self.worker_end.detach()

    def renew(self) -> None:
        """Make another pair if the other end, which no process holds any more, was shut down."""
        if self._shut:
            self.close()
            self._open()
            self.listen()

    # ── what comes in ─────────────────────────────────────────────────────────────────────────

    def use_poller(self, poller: select.poll) -> None:
        """From now on have `poller` wake init when there is input: see `listen`."""
        self._poller = poller

    def listen(self) -> None:
        """Wake init when there is input."""
        if not self._shut:
            self._poller.register(self._init_end, select.POLLIN)

    def ignore(self) -> None:
        """Leave all input unread."""
        if not self._shut:
            self._poller.unregister(self._init_end)

    def is_ready(self, ready: Container[int]) -> bool:
        """Return whether there is input."""
        return self._init_end.fileno() in ready

    def receive(self) -> tuple[int, int]:
        """As `next_message`; nothing more is read once the other end is shut down."""
        if self._shut:
            return -1, 0
        data = self._init_end.recv(WORKER_MESSAGE.size, socket.MSG_DONTWAIT)
        if not data:
            self.ignore()
            self._shut = True
        return _parsed(data)

    def next_message(self, timeout: int) -> tuple[int, int] | None:
        """Return the next message of a worker or a snapshot, None if none comes in time.

        `timeout`: milliseconds.
        """
        poller = select.poll()
        poller.register(self._init_end, select.POLLIN)
        if not poller.poll(timeout):
            return None
        try:
            return _parsed(self._init_end.recv(WORKER_MESSAGE.size, socket.MSG_DONTWAIT))
        except BlockingIOError:  # out-of-band data wakes a reader, and is not read
            return None

    # ── what goes out ─────────────────────────────────────────────────────────────────────────

    def confirm_kept(self) -> None:
        """Tell the worker that its files are kept."""
        # A process that asks and does not read must not block init.
        with suppress(BlockingIOError, BrokenPipeError):
            self._init_end.send(KEPT, socket.MSG_DONTWAIT)

    def send_command(self, command: bytes, descriptors: Sequence[int]) -> bool:
        """Send a command; return whether it was sent. Code that fills the socket is not waited
        for.
        """
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))
        try:
            self._init_end.sendmsg([command], [rights], socket.MSG_DONTWAIT)
        except OSError:
            return False
        return True

    def discard_messages(self) -> None:
        """Drop unread messages of a dead process or to it."""
        for end in (self._init_end, self.worker_end):
            with suppress(BlockingIOError):
                for _ in range(_MAX_READS):  # code that goes on filling it cannot keep init busy
                    end.recv(4096, socket.MSG_DONTWAIT)


def _parsed(data: bytes) -> tuple[int, int]:
    return WORKER_MESSAGE.unpack(data) if len(data) == WORKER_MESSAGE.size else (-1, 0)
