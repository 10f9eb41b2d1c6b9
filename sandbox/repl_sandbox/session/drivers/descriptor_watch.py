"""`DescriptorWatch`: an event loop waits until a descriptor of a session is ready."""

from __future__ import annotations

import asyncio
import select
import time

from ..io import SessionIO
from .read_pacing import LoopShare, share_of

_POLLIN = select.POLLIN
_monotonic = time.monotonic
_running_loop = asyncio.get_running_loop


class DescriptorWatch:
    """The registration of one session with an event loop, from the first wait to `close`.

    The loop watches one descriptor, whatever the session's current ones are, also between calls:
    registering and unregistering a descriptor takes longer than the wait. Input that arrives while
    no caller waits unregisters it.
    """

    def __init__(self) -> None:
        self._epoll = select.epoll()
        # poll(2) reports descriptors in their order, and the worker's is the first.
        self._poller = select.poll()
        self._registered: tuple[int, ...] = ()
        self._interest = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._share: LoopShare | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._has_unread_input = False
        # A timer is kept for the next wait, which mostly ends later: setting and cancelling one for
        # each step would be a tenth of the host's time for the step.
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ends = self._wake = 0.0

    async def ready(self, io: SessionIO, wake: float) -> list[tuple[int, int]]:
        """The descriptors of `io` that are ready by the time `wake`, or none."""
        if self._registered is not io.descriptors or self._interest != io.send_buffer.interest:
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
            self._waiter, self._has_unread_input = None, False
        return self._poller.poll(0)

    def share(self) -> LoopShare:
        """The time shares of the running loop."""
        loop = _running_loop()
        if self._share is None or loop is not self._loop:
            self._share = share_of(loop)
        return self._share

    def close(self) -> None:
        """Stop watching; the numbers of the descriptors may be reused from now on."""
        self._forget()
        self._epoll.close()

    def _set_timer(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ends = self._wake
        self._timer = loop.call_later(max(0.0, self._wake - _monotonic()), self._handle_timer)

    def _handle_timer(self) -> None:
        """Handle the timer of a wait, perhaps of an earlier one."""
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
        elif self._has_unread_input:
            self._forget()
        else:
            # The loop polled again before the waiting caller could read.
            self._has_unread_input = True

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
                # It was closed with the worker that it belonged to; the kernel has removed it
                # already.
                pass
        interest = io.send_buffer.interest
        for fd in io.descriptors:
            events = interest if fd == io.worker_fd else _POLLIN
            self._poller.register(fd, events)
            self._epoll.register(fd, events)
        self._registered, self._interest = io.descriptors, interest
