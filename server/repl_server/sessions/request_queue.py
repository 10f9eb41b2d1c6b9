"""`RequestQueue`: the pending requests of a session, and the sinks of their replies."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from ..protocol.frames import ClientRequest, InvalidFrame
from ..protocol.replies import ServerReply
from ..protocol.request_error import RequestError

# Pending requests of one session, and characters of these and the running one. Above either limit
# the socket is not read, and the limits on received bytes apply.
_MOST_WAITING = 16
_MOST_SIZE = 1 << 20


class ReplySink(Protocol):
    """The destination of replies: a socket, or one HTTP response."""

    @property
    def gone(self) -> bool:
        """True if the client has left."""

    @property
    def blocked_since(self) -> float | None:
        """Start of the current wait for the client to read (`time.monotonic`), or None."""

    async def deliver(self, id: str | None, reply: ServerReply) -> None:
        """Send a reply. Does not raise if the client has left."""

    def end(self, code: int, reason: str) -> None:
        """Close the destination without waiting."""


@dataclass(slots=True, eq=False)
class PendingRequest:
    """A request, its reply once there is one, and the sinks that wait for the reply.

    The client may send the same request over several sockets: `sink` is the latest, which gets
    streamed output too; `earlier_sinks` get the reply only.
    """

    request: ClientRequest | InvalidFrame
    sink: ReplySink
    reply: ServerReply | None = None
    earlier_sinks: tuple[ReplySink, ...] = ()

    @property
    def sinks(self) -> tuple[ReplySink, ...]:
        """All sinks that wait for the reply."""
        return (*self.earlier_sinks, self.sink)

    def add_sink(self, sink: ReplySink) -> None:
        """Deliver the reply to `sink` too."""
        self.earlier_sinks = tuple(
            each for each in self.sinks if each is not sink and not each.gone
        )
        self.sink = sink

    def remove_sink(self, sink: ReplySink) -> bool:
        """Remove a sink; False if no other waits."""
        others = tuple(each for each in self.sinks if each is not sink)
        if others:
            *earlier_sinks, self.sink = others
            self.earlier_sinks = tuple(earlier_sinks)
        return bool(others)


class RequestQueue:
    """Pending requests of one session in order of arrival, for one consumer.

    Attributes:
        full: a limit is exceeded, and the socket should not be read.
    """

    def __init__(self) -> None:
        self.full = False
        self._waiting: deque[PendingRequest] = deque()
        self._size = 0
        self._running_size = 0  # size of the request that the consumer works on
        self._taker: asyncio.Future[None] | None = None  # the consumer, while the queue is empty
        self._space = asyncio.Event()  # set when the queue is no longer full
        self._idle: asyncio.Event | None = None  # of `wait_idle`
        self._ended = False

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[PendingRequest]:
        return iter(tuple(self._waiting))

    async def wait_for_space(self) -> None:
        """Wait until the queue is not full."""
        if self.full:
            await self._space.wait()

    async def wait_idle(self) -> None:
        """Wait until the queue is empty and its consumer waits, or has ended."""
        if self._ended or (self._taker is not None and not self._waiting):
            return
        self._idle = self._idle or asyncio.Event()
        await self._idle.wait()

    def end(self) -> None:
        """The consumer has ended."""
        self._ended = True
        self._notify_idle()

    def add(self, pending: PendingRequest) -> None:
        """Append a request."""
        self._waiting.append(pending)
        self._size += pending.request.size
        if self._taker is not None and not self._taker.done():
            self._taker.set_result(None)
        if not self._has_space():
            self.full = True
            self._space.clear()

    async def take(self) -> PendingRequest:
        """Wait for the next request; the consumer is done with the previous one."""
        self._size -= self._running_size
        self._running_size = 0
        if self.full and self._has_space():
            self._reopen()
        while not self._waiting:
            self._notify_idle()
            self._taker = asyncio.get_running_loop().create_future()
            try:
                await self._taker
            finally:
                self._taker = None
        pending = self._waiting.popleft()
        self._running_size = pending.request.size
        return pending

    def find(self, id: str) -> PendingRequest | None:
        """The pending request with this id."""
        return next((each for each in self._waiting if each.request.id == id), None)

    def cancel(self, id: str) -> bool:
        """Cancel the pending request with this id; False if there is none."""
        pending = self.find(id)
        if pending is None or pending.reply is not None:
            return False
        pending.reply = cancelled_reply()
        return True

    def remove_sink(self, sink: ReplySink) -> None:
        """Remove `sink`, and requests whose replies no other sink waits for."""
        self._waiting = deque(each for each in self._waiting if each.remove_sink(sink))
        self._size = self._running_size + sum(each.request.size for each in self._waiting)
        self._reopen()

    def _reopen(self) -> None:
        self.full = False
        self._space.set()

    def _notify_idle(self) -> None:
        if self._idle is not None:
            self._idle.set()
            self._idle = None

    def _has_space(self) -> bool:
        return len(self._waiting) < _MOST_WAITING and self._size < _MOST_SIZE


def cancelled_reply() -> ServerReply:
    """The reply to a cancelled request."""
    return ServerReply.of_error(RequestError("EXECUTION_ERROR", "cancelled by the client"))
