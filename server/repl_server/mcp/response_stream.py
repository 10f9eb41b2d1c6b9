"""`MCPResponseStream`: the notifications and the response of one request over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

from mcp_types import RequestId

from ..protocol.replies import ServerReply
from ..protocol.request_error import socket_closed_error
from .tool_server import request_error_reply

# Seconds after which a comment keeps a silent stream alive for proxies.
_SILENCE = 15.0
_PING = ": ping\r\n\r\n"
# Notifications buffered for a slow reader; further ones are dropped.
_MOST_NOTIFICATIONS = 16


class MCPResponseStream:
    """A reply sink for the request `id`; never waits for its reader.

    `ended` is called with the response, also if nobody reads any more.
    """

    blocked_since: float | None = None

    def __init__(self, id: RequestId | None, ended: Callable[[], None]) -> None:
        self._id = id
        self._ended = ended
        self._waiting: list[str] = []
        self._arrived = asyncio.Event()
        self._complete = False
        self.gone = False

    async def deliver(self, id: str | None, reply: ServerReply) -> None:
        """As `ReplySink.deliver`."""
        if reply.type != "output":
            self._end(
                reply if reply.refusal is None else request_error_reply(self._id, reply.refusal)
            )
        elif len(self._waiting) < _MOST_NOTIFICATIONS:
            self._push(reply)

    def end(self, code: int, reason: str) -> None:
        """As `ReplySink.end`."""
        self._end(request_error_reply(self._id, socket_closed_error(code, reason)))

    async def answer(self) -> ServerReply:
        """Wait for the response alone."""
        messages = [text async for text in self._messages() if text is not None]
        return ServerReply("mcp", messages[-1])

    async def events(self) -> AsyncIterator[str]:
        """Notifications and the response as server-sent events."""
        try:
            async for text in self._messages():
                yield _PING if text is None else f"event: message\r\ndata: {text}\r\n\r\n"
        finally:
            self.gone = True

    async def _messages(self) -> AsyncIterator[str | None]:
        """Each message; None for a while in which none came."""
        while self._waiting or not self._complete:
            try:
                async with asyncio.timeout(_SILENCE):
                    await self._arrived.wait()
            except TimeoutError:
                yield None
                continue
            self._arrived.clear()
            waiting, self._waiting = self._waiting, []
            for text in waiting:
                yield text

    def _end(self, answer: ServerReply) -> None:
        self._push(answer)
        if not self._complete:
            self._complete = True
            self._ended()

    def _push(self, reply: ServerReply) -> None:
        if not self._complete:
            self._waiting.append(reply.data)
            self._arrived.set()
