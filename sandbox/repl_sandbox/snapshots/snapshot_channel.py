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

from .snapshot_messages import KEPT, WORD

# The distance below the worker's socket at which that of its snapshots lies.
_BELOW = 100
_MOST_READS = 1000


class SnapshotChannel:
    """Both ends: init also holds the other one, so that sending to a dead process is no error.

    Iterating gives the descriptors of both.
    """

    def __init__(self, high: int) -> None:
        """`high`: the number of a worker's socket."""
        self._high = high
        self._open()

    @classmethod
    def at(cls, high: int, ours: int, theirs: int) -> SnapshotChannel:
        """The pair that a session will have at these numbers, which are free here."""
        orders = cls.__new__(cls)
        orders._high = high
        # While the objects with these numbers are made.
        pair = _socket.socketpair()
        for end, fd in zip(pair, (ours, theirs), strict=True):
            os.dup2(end.fileno(), fd, inheritable=False)
            end.close()
        orders._take(_socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, ours), theirs)
        os.close(ours)
        os.close(theirs)
        return orders

    def _open(self) -> None:
        # A stream, because a session without a network may have no other
        # (jail/seccomp/syscalls.py).
        ours, theirs = _socket.socketpair()
        high_fd = fcntl(theirs.fileno(), F_DUPFD_CLOEXEC, self._high - _BELOW)
        theirs.close()
        self._take(ours, high_fd)

    def _take(self, ours: _socket.socket, theirs: int) -> None:
        self._shut = False
        self._ours = ours
        self.theirs = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, theirs)
        self._numbers = ours.fileno(), theirs

    def __iter__(self) -> Iterator[int]:
        return iter(self._numbers)

    def close(self) -> None:
        """Close both ends."""
        self._ours.close()
        self.theirs.close()

    def drop(self) -> None:
        """Forget both ends, which are open in no process that has this object."""
        self._ours.detach()
        self.theirs.detach()

    def renew(self) -> None:
        """Make another pair if the other end, which no process holds any more, was shut down."""
        if self._shut:
            self.close()
            self._open()
            self.listen()

    # ── what comes in ─────────────────────────────────────────────────────────────────────────

    def listen_with(self, poller: select.poll) -> None:
        """From now on have `poller` wake init when there is input: see `listen`."""
        self._poller = poller

    def listen(self) -> None:
        """Be woken by input."""
        if not self._shut:
            self._poller.register(self._ours, select.POLLIN)

    def ignore(self) -> None:
        """Leave the input unread, however much it is."""
        if not self._shut:
            self._poller.unregister(self._ours)

    def among(self, ready: Container[int]) -> bool:
        """Whether there is input."""
        return self._ours.fileno() in ready

    def hear(self) -> tuple[int, int]:
        """As `word`; nothing more is read once the other end is shut down."""
        if self._shut:
            return -1, 0
        said = self._ours.recv(WORD.size, socket.MSG_DONTWAIT)
        if not said:
            self.ignore()
            self._shut = True
        return _parsed(said)

    def word(self, timeout: int) -> tuple[int, int] | None:
        """Return the next message of a worker or a snapshot within so many milliseconds; None: none
        came.
        """
        poller = select.poll()
        poller.register(self._ours, select.POLLIN)
        if not poller.poll(timeout):
            return None
        try:
            return _parsed(self._ours.recv(WORD.size, socket.MSG_DONTWAIT))
        except BlockingIOError:  # out-of-band data wakes a reader, and is not read
            return None

    # ── what goes out ─────────────────────────────────────────────────────────────────────────

    def tell_kept(self) -> None:
        """Tell the worker that its files are kept."""
        # A process that asks and does not read must not block init.
        with suppress(BlockingIOError, BrokenPipeError):
            self._ours.send(KEPT, socket.MSG_DONTWAIT)

    def give(self, order: bytes, descriptors: Sequence[int], *, wait: bool) -> bool:
        """Send an order; return whether it was sent. Without `wait` a full socket is an error."""
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))
        try:
            self._ours.sendmsg([order], [rights], 0 if wait else socket.MSG_DONTWAIT)
        except OSError:
            return False
        return True

    def empty(self) -> None:
        """Drop unread messages of a dead process or to it."""
        for end in (self._ours, self.theirs):
            with suppress(BlockingIOError):
                for _ in range(_MOST_READS):  # code that goes on filling it cannot keep init busy
                    end.recv(4096, socket.MSG_DONTWAIT)


def _parsed(said: bytes) -> tuple[int, int]:
    return WORD.unpack(said) if len(said) == WORD.size else (-1, 0)
