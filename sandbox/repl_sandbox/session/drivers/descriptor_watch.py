"""`DescriptorWatch`: waiting on an event loop until one of a session's descriptors is ready."""

from __future__ import annotations

import asyncio
import select
import time

from ..io import SessionIO
from .read_pacing import Turns, turns_of

_POLLIN = select.POLLIN
_monotonic = time.monotonic
_running_loop = asyncio.get_running_loop


class DescriptorWatch:
    """What an event loop watches for one session, from its first wait to `close`.

    The loop knows one descriptor, whatever the session's own are at the moment, and goes on
    watching it between calls: to tell it about a descriptor and to forget that takes longer than
    the wait. What comes in while nobody waits makes it forget.
    """

    def __init__(self) -> None:
        self._epoll = select.epoll()
        # poll(2) looks at descriptors in their order, and the worker's is the first of them.
        self._poller = select.poll()
        self._registered: tuple[int, ...] = ()
        self._interest = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._turns: Turns | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._stray = False
        # A timer is left for the next wait, which mostly ends later: to set one and to cancel it
        # for each step is a tenth of what the step takes the host.
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ends = self._wake = 0.0

    async def ready(self, io: SessionIO, wake: float) -> list[tuple[int, int]]:
        """The descriptors of `io` that are ready by the time `wake`, or none."""
        if self._registered is not io.descriptors or self._interest != io.outbox.interest:
            self._register(io)
        loop = _running_loop()
        if loop is not self._loop:
            self._begin(loop)
        self._waiter, self._wake = loop.create_future(), wake
        if self._timer is None or wake < self._timer_ends:
            self._set_timer(loop)
        try:
            await self._waiter
        finally:
            self._waiter, self._stray = None, False
        return self._poller.poll(0)

    def turns(self) -> Turns:
        """Those of the loop that runs."""
        loop = _running_loop()
        if self._turns is None or loop is not self._loop:
            self._turns = turns_of(loop)
        return self._turns

    def close(self) -> None:
        """Watch nothing any more; the descriptors may be others' from now on."""
        self._forget()
        self._epoll.close()

    def _set_timer(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ends = self._wake
        self._timer = loop.call_later(max(0.0, self._wake - _monotonic()), self._look_up)

    def _look_up(self) -> None:
        """The time of a wait has come; perhaps of an earlier one."""
        self._timer = None
        if self._waiter is None or self._waiter.done() or self._loop is None:
            return
        if _monotonic() < self._wake:
            self._set_timer(self._loop)
        else:
            self._waiter.set_result(None)

    def _end_wait(self) -> None:
        waiter = self._waiter
        if waiter is not None:
            if not waiter.done():
                waiter.set_result(None)
        elif self._stray:
            self._forget()
        else:
            # The loop has looked once more before the one who waited could read.
            self._stray = True

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        self._forget()
        loop.add_reader(self._epoll.fileno(), self._end_wait)
        self._loop = loop

    def _forget(self) -> None:
        loop, self._loop = self._loop, None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if loop is not None and not loop.is_closed():
            loop.remove_reader(self._epoll.fileno())

    def _register(self, io: SessionIO) -> None:
        for fd in self._registered:
            self._poller.unregister(fd)
            try:
                self._epoll.unregister(fd)
            except OSError:
                # Closed with the worker it belonged to; the kernel has forgotten it already.
                pass
        interest = io.outbox.interest
        for fd in io.descriptors:
            wanted = interest if fd == io.worker_fd else _POLLIN
            self._poller.register(fd, wanted)
            self._epoll.register(fd, wanted)
        self._registered, self._interest = io.descriptors, interest
