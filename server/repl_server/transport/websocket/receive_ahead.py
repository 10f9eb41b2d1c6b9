"""`ReceiveAhead`: reads messages of a socket in advance, to notice that its client has left.

A transport reports a disconnect only while someone is reading, and nobody takes messages while the
client waits in the queue for a session.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Awaitable, Callable

from .socket_writer import Message

# Messages buffered in advance. Clients send one request and wait for its reply.
_MOST = 16


class ReceiveAhead:
    """The messages of `receive` (ASGI), in order.

    `book` accounts for so many more bytes, or fewer; False above a limit. A message above the limit
    is kept without being accounted for, and nothing is read after it.
    """

    def __init__(
        self, receive: Callable[[], Awaitable[Message]], book: Callable[[int], bool]
    ) -> None:
        self._receive = receive
        self._book = book
        self._kept: deque[tuple[Message, int]] = deque()
        self._coming: asyncio.Task[Message] | None = None

    async def next(self) -> Message:
        """The next message."""
        if self._kept:
            message, booked = self._kept.popleft()
            self._book(-booked)
            return message
        if self._coming is None:
            return await self._receive()
        message = await self._coming
        self._coming = None
        return message

    async def disconnected(self) -> None:
        """Wait until the client disconnects; for ever if the buffer is full."""
        while len(self._kept) < _MOST:
            if self._coming is None:
                self._coming = asyncio.create_task(_as_coroutine(self._receive()))
            message = await asyncio.shield(self._coming)
            self._coming = None
            if message["type"] == "websocket.disconnect":
                self._kept.append((message, 0))
                return
            if not self._keep(message):
                break
        await asyncio.Event().wait()

    def close(self) -> None:
        """Drop buffered messages, and stop reading."""
        while self._kept:
            self._book(-self._kept.popleft()[1])
        if self._coming is not None:
            self._coming.cancel()

    def _keep(self, message: Message) -> bool:
        size = sys.getsizeof(message.get("text") or message.get("bytes"))
        booked = self._book(size)
        self._kept.append((message, size if booked else 0))
        return booked


async def _as_coroutine(awaited: Awaitable[Message]) -> Message:
    return await awaited
