"""`MCPResponseStream`: an outlet for the answer to one request over HTTP, and what is notified
before it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

from mcp_types import RequestId

from ..protocol.replies import ServerReply
from ..protocol.request_error import socket_closed_error
from .tool_server import refusing

# Seconds of silence after which a comment shows proxies that the stream lives.
_SILENCE = 15.0
_PING = ": ping\r\n\r\n"
# Notifications that wait for a slow reader; those on top are left out.
_MOST_NOTIFICATIONS = 16


class MCPResponseStream:
    """Where the reply to the request `id` goes. Waits for no reader.

    `socket_closed_error` is called when it is there, also if nobody reads any more.
    """

    blocked_since: float | None = None

    def __init__(self, id: RequestId | None, ended: Callable[[], None]) -> None:
        self._id = id
        self._ended = ended
        self._waiting: list[str] = []
        self._news = asyncio.Event()
        self._whole = False
        self.gone = False

    async def deliver(self, id: str | None, reply: ServerReply) -> None:
        """As `Outlet.deliver`."""
        if reply.type != "output":
            self._end(reply if reply.refusal is None else refusing(self._id, reply.refusal))
        elif len(self._waiting) < _MOST_NOTIFICATIONS:
            self._tell(reply)

    def end(self, code: int, reason: str) -> None:
        """As `Outlet.end`."""
        self._end(refusing(self._id, socket_closed_error(code, reason)))

    async def answer(self) -> ServerReply:
        """The answer alone, once it is there."""
        told = [text async for text in self._messages() if text is not None]
        return ServerReply("mcp", told[-1])

    async def events(self) -> AsyncIterator[str]:
        """All of it as server-sent events."""
        try:
            async for text in self._messages():
                yield _PING if text is None else f"event: message\r\ndata: {text}\r\n\r\n"
        finally:
            self.gone = True

    async def _messages(self) -> AsyncIterator[str | None]:
        """Each message; None for a while in which none came."""
        while self._waiting or not self._whole:
            try:
                async with asyncio.timeout(_SILENCE):
                    await self._news.wait()
            except TimeoutError:
                yield None
                continue
            self._news.clear()
            waiting, self._waiting = self._waiting, []
            for text in waiting:
                yield text

    def _end(self, answer: ServerReply) -> None:
        self._tell(answer)
        if not self._whole:
            self._whole = True
            self._ended()

    def _tell(self, reply: ServerReply) -> None:
        if not self._whole:
            self._waiting.append(reply.data)
            self._news.set()
