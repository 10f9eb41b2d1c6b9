"""What a session's workers and copies say to init, and what init says to them.

One pair of sockets, of which each worker and each copy has the same end. Code of the session has
that end too: it may say anything there, read what is not for it, or shut it.
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

# So far below the worker's socket lies that of its copies.
_BELOW = 100
_MOST_READS = 1000


class SnapshotChannel:
    """Both ends, for init holds theirs too: what it says to one that is gone must be no error.

    Iterating gives the descriptors of both.
    """

    def __init__(self, high: int) -> None:
        """`high`: where a worker's socket lies."""
        self._high = high
        self._open()

    @classmethod
    def at(cls, high: int, ours: int, theirs: int) -> SnapshotChannel:
        """The pair that a session is going to have at these numbers, which are free here."""
        orders = cls.__new__(cls)
        orders._high = high
        # For as long as it takes to have objects of these numbers.
        pair = _socket.socketpair()
        for end, fd in zip(pair, (ours, theirs), strict=True):
            os.dup2(end.fileno(), fd, inheritable=False)
            end.close()
        orders._take(_socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, ours), theirs)
        os.close(ours)
        os.close(theirs)
        return orders

    def _open(self) -> None:
        # A stream, because a session without a network may have no other (jail/syscalls.py).
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
        """Let go of both ends."""
        self._ours.close()
        self.theirs.close()

    def drop(self) -> None:
        """Forget both ends, which are open in no process that has this object."""
        self._ours.detach()
        self.theirs.detach()

    def renew(self) -> None:
        """Nobody holds the other end any more; make another pair if that was shut."""
        if self._shut:
            self.close()
            self._open()
            self.listen()

    # ── what comes in ─────────────────────────────────────────────────────────────────────────

    def listen_with(self, poller: select.poll) -> None:
        """Have `poller` wake init from now on when there is something to hear: see `listen`."""
        self._poller = poller

    def listen(self) -> None:
        """Be woken by what is said."""
        if not self._shut:
            self._poller.register(self._ours, select.POLLIN)

    def ignore(self) -> None:
        """Let it wait, however much that is."""
        if not self._shut:
            self._poller.unregister(self._ours)

    def among(self, ready: Container[int]) -> bool:
        """Whether there is something to hear."""
        return self._ours.fileno() in ready

    def hear(self) -> tuple[int, int]:
        """As `word`; nothing more is heard once the other end is shut."""
        if self._shut:
            return -1, 0
        said = self._ours.recv(WORD.size, socket.MSG_DONTWAIT)
        if not said:
            self.ignore()
            self._shut = True
        return _parsed(said)

    def word(self, timeout: int) -> tuple[int, int] | None:
        """What a worker or a copy says, within so many milliseconds; None for nothing."""
        poller = select.poll()
        poller.register(self._ours, select.POLLIN)
        if not poller.poll(timeout):
            return None
        try:
            return _parsed(self._ours.recv(WORD.size, socket.MSG_DONTWAIT))
        except BlockingIOError:  # what is sent out of band wakes a reader, and is not read
            return None

    # ── what goes out ─────────────────────────────────────────────────────────────────────────

    def tell_kept(self) -> None:
        """Tell the worker that its files are kept."""
        # Whoever asks and does not read must not keep init waiting.
        with suppress(BlockingIOError, BrokenPipeError):
            self._ours.send(KEPT, socket.MSG_DONTWAIT)

    def give(self, order: bytes, descriptors: Sequence[int], *, wait: bool) -> bool:
        """Whether an order could be said; to one that may not read it, init does not `wait`."""
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))
        try:
            self._ours.sendmsg([order], [rights], 0 if wait else socket.MSG_DONTWAIT)
        except OSError:
            return False
        return True

    def empty(self) -> None:
        """Forget what was said and not read, by one that is gone or to it."""
        for end in (self._ours, self.theirs):
            with suppress(BlockingIOError):
                for _ in range(_MOST_READS):  # who goes on filling it does not keep init at it
                    end.recv(4096, socket.MSG_DONTWAIT)


def _parsed(said: bytes) -> tuple[int, int]:
    return WORD.unpack(said) if len(said) == WORD.size else (-1, 0)
