"""`BlockingWait`: waits for the descriptors of a session, one caller at a time."""

from __future__ import annotations

import math
import select
from contextlib import suppress

from ..io import ReadyDescriptors, SessionIO

# Milliseconds; a caller that wakes early checks the clock again. Python runs signal handlers
# between two of its own instructions: a signal that arrives after the last one before poll(2) does
# not interrupt the call, and a Ctrl-C of that moment is seen after it.
LONGEST_WAIT = 1_000


class BlockingWait:
    """poll(2), which reports descriptors in their order: the first is the worker's socket.

    The others are behind one descriptor, an epoll(7), because each descriptor of poll(2) costs a
    step half a microsecond. The epoll has what became ready before the worker's message, because it
    is polled after the socket.
    """

    def __init__(self) -> None:
        self._descriptors: tuple[int, ...] = ()  # the descriptors of `_poll`, with `_interest`
        self._interest = 0
        self._seconds, self._milliseconds = 0.0, 0  # the limit of the last wait
        self._poll = select.poll().poll
        self._behind: set[int] = set()  # the largest result that the epoll may return
        try:
            self._epoll: select.epoll | None = select.epoll()
        except OSError:  # the maximum number of descriptors: slower without
            self._epoll = None
        self.others = -1 if self._epoll is None else self._epoll.fileno()

    def follow(self, descriptors: tuple[int, ...], worker: int, interest: int) -> None:
        """Wait for input of each of `descriptors` from now on, but for `interest` of `worker`."""
        # An epoll descriptor is readable when a descriptor behind it is.
        direct = 1 if interest == select.POLLIN else descriptors.index(worker) + 1
        poller = select.poll()
        for fd in descriptors[:direct]:
            poller.register(fd, interest if fd == worker else select.POLLIN)
        for fd in self._put_behind(descriptors[direct:]):
            poller.register(fd, select.POLLIN)
        self._poll = poller.poll
        self._descriptors, self._interest = descriptors, interest

    def wait(self, io: SessionIO, seconds: float) -> ReadyDescriptors:
        """Wait at most so long, rounded up, because waking early would spin. Return what is
        ready.
        """
        descriptors, interest = io.descriptors, io.send_buffer.interest
        if self._descriptors is not descriptors or self._interest != interest:
            self.follow(descriptors, io.worker_fd, interest)
        if seconds != self._seconds:
            self._milliseconds = math.ceil(min(seconds * 1000, LONGEST_WAIT))
            self._seconds = seconds
        ready: ReadyDescriptors = self._poll(self._milliseconds)
        if ready and ready[-1][0] == self.others and self._epoll is not None:
            ready[-1:] = self._epoll.poll(0)
        return ready

    def _put_behind(self, fds: tuple[int, ...]) -> tuple[int, ...]:
        """Put exactly these descriptors behind the epoll; return the descriptors for poll(2).

        It can be repeated after a KeyboardInterrupt.
        """
        if self._epoll is None:
            return fds
        self._behind.update(fds)
        for fd in fds:
            with suppress(FileExistsError):
                self._epoll.register(fd, select.EPOLLIN)
        for fd in self._behind.difference(fds):
            with suppress(OSError):  # it was closed with the worker that it belonged to
                self._epoll.unregister(fd)
        self._behind.intersection_update(fds)
        return (self.others,)

    def close(self) -> None:
        """Release the poller; the session's descriptors stay open."""
        if self._epoll is not None:
            self._epoll.close()
