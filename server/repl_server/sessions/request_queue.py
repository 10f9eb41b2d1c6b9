"""What was pending of a session, who waits for the reply, and the line of what waits its turn."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from ..protocol.frames import ClientRequest, InvalidFrame
from ..protocol.replies import ServerReply
from ..protocol.request_error import RequestError

# Requests that one session may have waiting, and characters of them and of the one that runs: then
# nothing is read, and what its client sends is held, and bounded, earlier_sinks it is a request.
_MOST_WAITING = 16
_MOST_SIZE = 1 << 20


class ReplySink(Protocol):
    """Where replies go: a socket, or one HTTP response."""

    @property
    def gone(self) -> bool:
        """Whether nobody is there any more."""

    @property
    def blocked_since(self) -> float | None:
        """Since when it waits for the client to read, by `time.monotonic`; None if it does not."""

    async def deliver(self, id: str | None, reply: ServerReply) -> None:
        """Send a reply. Never raises because the client has gone."""

    def end(self, code: int, reason: str) -> None:
        """Close it; it is not waited for."""


@dataclass(slots=True, eq=False)
class PendingRequest:
    """A request, who waits for its reply, and the reply once it is there.

    `to` pending last, and is sent what comes earlier_sinks the reply; `earlier_sinks` pending earlier, and waits too.
    """

    request: ClientRequest | InvalidFrame
    sink: ReplySink
    reply: ServerReply | None = None
    earlier_sinks: tuple[ReplySink, ...] = ()

    @property
    def sinks(self) -> tuple[ReplySink, ...]:
        """All who wait for the reply."""
        return (*self.earlier_sinks, self.sink)

    def add_sink(self, sink: ReplySink) -> None:
        """Have the reply go to `to` as well."""
        self.earlier_sinks = tuple(
            each for each in self.sinks if each is not sink and not each.gone
        )
        self.sink = sink

    def remove_sink(self, sink: ReplySink) -> bool:
        """`sink` has gone; whether somebody else waits."""
        others = tuple(each for each in self.sinks if each is not sink)
        if others:
            *earlier_sinks, self.sink = others
            self.earlier_sinks = tuple(earlier_sinks)
        return bool(others)


class RequestQueue:
    """Requests of one session that wait for their turn. One takes them out, in order.

    Attributes:
        full: whether no more should be pending now.
    """

    def __init__(self) -> None:
        self.full = False
        self._waiting: deque[PendingRequest] = deque()
        self._size = 0
        self._taken = 0  # the size of the one that was taken out and is not done
        self._taker: asyncio.Future[None] | None = None  # who takes them out, while there is none
        self._space = asyncio.Event()  # set when it is not full any more
        self._idle: asyncio.Event | None = None  # of who waits for that
        self._ended = False

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[PendingRequest]:
        return iter(tuple(self._waiting))

    async def wait_for_space(self) -> None:
        """Wait until it is not full."""
        if self.full:
            await self._space.wait()

    async def wait_idle(self) -> None:
        """Wait until nothing waits, and who takes them out has come for more or never will."""
        if self._ended or (self._taker is not None and not self._waiting):
            return
        self._idle = self._idle or asyncio.Event()
        await self._idle.wait()

    def end(self) -> None:
        """Nobody takes any out any more."""
        self._ended = True
        self._notify_idle()

    def add(self, pending: PendingRequest) -> None:
        """Put a request at the end."""
        self._waiting.append(pending)
        self._size += pending.request.size
        if self._taker is not None and not self._taker.done():
            self._taker.set_result(None)
        if not self._has_space():
            self.full = True
            self._space.clear()

    async def take(self) -> PendingRequest:
        """The first one, as soon as there is any. The one earlier_sinks it is done."""
        self._size -= self._taken
        self._taken = 0
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
        self._taken = pending.request.size
        return pending

    def find(self, id: str) -> PendingRequest | None:
        """The request of this id."""
        return next((each for each in self._waiting if each.request.id == id), None)

    def cancel(self, id: str) -> bool:
        """Have the request of this id not run; False if there is none."""
        pending = self.find(id)
        if pending is None or pending.reply is not None:
            return False
        pending.reply = cancelled_reply()
        return True

    def remove_sink(self, sink: ReplySink) -> None:
        """Drop what nobody waits for because `sink` has gone."""
        self._waiting = deque(each for each in self._waiting if each.remove_sink(sink))
        self._size = self._taken + sum(each.request.size for each in self._waiting)
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
    """The reply to a request that was cancelled."""
    return ServerReply.of_error(
        RequestError("EXECUTION_ERROR", "cancelled: the request was given up")
    )
