"""`BlockingWait`: what a caller waits with for a session's descriptors, one caller at a time."""

from __future__ import annotations

import math
import select
from contextlib import suppress

from ..io import Ready_, SessionIO

# Milliseconds; whoever wakes early looks at the clock again. Python's handlers run between two of
# its own instructions: a signal that strikes after the last one before poll(2) does not end that
# call, and a Ctrl-C of that moment is seen after it.
LONGEST_WAIT = 1_000


class BlockingWait:
    """poll(2), which looks at descriptors in their order: the first is where the worker speaks.

    The others are behind one, an epoll(7), as each that poll(2) looks at takes a step half a
    microsecond. It has what became ready before the worker spoke, for it is looked at after that.
    """

    def __init__(self) -> None:
        self._descriptors: tuple[int, ...] = ()  # what `_poll` waits for, with `_interest`
        self._interest = 0
        self._seconds, self._milliseconds = 0.0, 0  # how long was waited last at most
        self._poll = select.poll().poll
        self._behind: set[int] = set()  # what the epoll may have
        try:
            self._epoll: select.epoll | None = select.epoll()
        except OSError:  # as many descriptors as may be: it takes longer without
            self._epoll = None
        self.others = -1 if self._epoll is None else self._epoll.fileno()

    def follow(self, descriptors: tuple[int, ...], worker: int, interest: int) -> None:
        """Wait to read each of `descriptors` from now on, but for `interest` of `worker`."""
        # An epoll tells of what can be read behind it.
        direct = 1 if interest == select.POLLIN else descriptors.index(worker) + 1
        poller = select.poll()
        for fd in descriptors[:direct]:
            poller.register(fd, interest if fd == worker else select.POLLIN)
        for fd in self._put_behind(descriptors[direct:]):
            poller.register(fd, select.POLLIN)
        self._poll = poller.poll
        self._descriptors, self._interest = descriptors, interest

    def wait(self, io: SessionIO, seconds: float) -> Ready_:
        """Wait so long at most, rounded up: waking early would spin. What is ready, or nothing."""
        descriptors, interest = io.descriptors, io.outbox.interest
        if self._descriptors is not descriptors or self._interest != interest:
            self.follow(descriptors, io.worker_fd, interest)
        if seconds != self._seconds:
            self._milliseconds = math.ceil(min(seconds * 1000, LONGEST_WAIT))
            self._seconds = seconds
        ready: Ready_ = self._poll(self._milliseconds)
        if ready and ready[-1][0] == self.others and self._epoll is not None:
            ready[-1:] = self._epoll.poll(0)
        return ready

    def _put_behind(self, fds: tuple[int, ...]) -> tuple[int, ...]:
        """Have these behind `others` and none else; what is to be polled in their place.

        After a Ctrl-C amid this it is done again.
        """
        if self._epoll is None:
            return fds
        self._behind.update(fds)
        for fd in fds:
            with suppress(FileExistsError):
                self._epoll.register(fd, select.EPOLLIN)
        for fd in self._behind.difference(fds):
            with suppress(OSError):  # it is gone with the worker that it belonged to
                self._epoll.unregister(fd)
        self._behind.intersection_update(fds)
        return (self.others,)

    def close(self) -> None:
        """Let go of what waits; the session's descriptors are not its own."""
        if self._epoll is not None:
            self._epoll.close()
