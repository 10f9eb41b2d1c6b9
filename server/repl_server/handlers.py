"""Handlers of requests, one function for each type, and the output of a step while it runs."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Self

from .protocol import ClientRequest, ServerReply, observation_text, text_of
from .session import Handler, PendingRequest, ServerSession

# `OutputStream`: sends the output of a step while it runs, bounded for slow readers.

# Characters buffered for a slow reader; further ones are dropped and counted.
_MOST = 1 << 16
# Seconds between two flushes, so that a thousand prints are not a thousand frames.
_PAUSE = 0.02


@dataclass(slots=True)
class _OutputChunk:
    """Text of one stream, and the number of characters dropped after it."""

    stream: str
    texts: list[str] = field(default_factory=list)
    size: int = 0
    dropped: int = 0

    def reply(self) -> ServerReply:
        data: dict[str, str | int] = {"stream": self.stream, "text": "".join(self.texts)}
        if self.dropped:
            data["dropped"] = self.dropped
        return ServerReply("output", text_of(data))


class OutputStream:
    """Sends the output of a running step to the client that waits for its reply.

    A context manager, which sends the rest of the output at its end.
    """

    def __init__(self, pending: PendingRequest) -> None:
        self._pending = pending
        self._chunks: deque[_OutputChunk] = deque()
        self._size = 0
        self._sender: asyncio.Task[None] | None = None

    def add(self, stream: str, text: str) -> None:
        """Buffer more output. Never blocks."""
        if self._pending.sink.gone:
            return
        stored = text[: _MOST - self._size]
        if stored:
            last = self._chunks[-1] if self._chunks else None
            if last is None or last.stream != stream or last.dropped:
                last = self._append(stream)
            last.texts.append(stored)
            last.size += len(stored)
            self._size += len(stored)
        if len(stored) < len(text):
            found = (each for each in reversed(self._chunks) if each.stream == stream)
            (next(found, None) or self._append(stream)).dropped += len(text) - len(stored)
        if self._sender is None:
            self._sender = asyncio.get_running_loop().create_task(self._send())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        sender, self._sender = self._sender, None
        if sender is not None:
            sender.cancel()
            await asyncio.wait([sender])
        if error is None:
            await self._flush()

    def _append(self, stream: str) -> _OutputChunk:
        chunk = _OutputChunk(stream)
        self._chunks.append(chunk)
        return chunk

    async def _send(self) -> None:
        while self._chunks:
            await self._flush()
            await asyncio.sleep(_PAUSE)
        self._sender = None

    async def _flush(self) -> None:
        while self._chunks:
            chunk = self._chunks.popleft()
            self._size -= chunk.size
            try:
                await self._pending.sink.deliver(self._pending.request.id, chunk.reply())
            except asyncio.CancelledError:
                self._chunks.appendleft(chunk)
                self._size += chunk.size
                raise


# Handlers of requests: one function for each request type.


async def _reset(
    session: ServerSession, pending: PendingRequest, request: ClientRequest
) -> ServerReply:
    return await _observed(session, await session.reset(request.data), request)


async def _step(
    session: ServerSession, pending: PendingRequest, request: ClientRequest
) -> ServerReply:
    if not request.stream:
        observation = await session.step(request.data, request.timeout_s, None)
    else:
        async with OutputStream(pending) as streamed:
            observation = await session.step(request.data, request.timeout_s, streamed.add)
    return await _observed(session, observation, request)


async def _state(
    session: ServerSession, pending: PendingRequest, request: ClientRequest
) -> ServerReply:
    return ServerReply("state", text_of(await session.adapter.state()))


async def _variables(
    session: ServerSession, pending: PendingRequest, request: ClientRequest
) -> ServerReply:
    return ServerReply("variables", text_of({"names": await session.adapter.variables()}))


async def _follow_up(
    session: ServerSession, pending: PendingRequest, request: ClientRequest
) -> ServerReply:
    return await _observed(session, await session.adapter.follow_up(request.data), request)


async def _draft(
    session: ServerSession, pending: PendingRequest, request: ClientRequest
) -> ServerReply:
    return ServerReply("draft", text_of({"value": await session.adapter.draft()}))


async def _rollback(
    session: ServerSession, pending: PendingRequest, request: ClientRequest
) -> ServerReply:
    lost = await session.roll_back(request.data.cells)
    names = await session.adapter.variables()
    return ServerReply("rollback", text_of({"lost": lost, "names": names}))


async def _branch(
    session: ServerSession, pending: PendingRequest, request: ClientRequest
) -> ServerReply:
    branch = await session.manager.branch(session, request.data.seed)
    branch.cpu = session.cpu  # an observation of either session includes both
    return ServerReply("branch", text_of({"session_id": branch.id, "token": branch.token}))


async def _observed(
    session: ServerSession, observation: Any, request: ClientRequest
) -> ServerReply:
    pieces = observation_text(observation, beside=request.id is None)
    return ServerReply("observation", await session.manager.json_codec.written(pieces))


# By request type. The manager adds others, such as "mcp".
HANDLERS: Final[Mapping[str, Handler]] = {
    "reset": _reset,
    "step": _step,
    "state": _state,
    "variables": _variables,
    "follow_up": _follow_up,
    "draft": _draft,
    "rollback": _rollback,
    "branch": _branch,
}
