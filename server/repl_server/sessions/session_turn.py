"""`SessionTurn`: holds a session between two of its requests, for work on its environment."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ..protocol.frames import ClientRequest
from ..protocol.replies import ServerReply
from ..protocol.request_error import socket_closed_error
from .environments.environment_adapter import EnvironmentAdapter
from .request_queue import PendingRequest
from .server_session import ServerSession

# The type of its request, which no client can send.
TURN = "turn"


class SessionTurn:
    """A request that runs until `end`, and the sink of its own reply."""

    blocked_since: float | None = None

    def __init__(self) -> None:
        self.begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.ended = asyncio.Event()

    @property
    def gone(self) -> bool:
        """True if nobody holds the session, or waits for it, any more."""
        return self.ended.is_set()

    async def deliver(self, id: str | None, reply: ServerReply) -> None:
        """As `ReplySink.deliver`: an error in place of the turn."""
        if reply.refusal is not None and not self.begun.done():
            self.begun.set_exception(reply.refusal)

    def end(self, code: int, reason: str) -> None:
        """As `ReplySink.end`."""
        if not self.begun.done():
            self.begun.set_exception(socket_closed_error(code, reason))


@asynccontextmanager
async def turn_of(session: ServerSession) -> AsyncIterator[EnvironmentAdapter]:
    """Hold `session` for the block, after its earlier requests and before later ones.

    Raises:
        RequestError: the session ended first.
    """
    turn = SessionTurn()
    session.submit(ClientRequest(TURN, turn), turn)
    try:
        await turn.begun
        yield session.adapter
    finally:
        turn.ended.set()


async def hold(
    session: ServerSession, pending: PendingRequest, request: ClientRequest
) -> ServerReply:
    """The handler of the request."""
    turn: SessionTurn = request.data
    if not turn.begun.done():
        turn.begun.set_result(None)
    await turn.ended.wait()
    return ServerReply(TURN, "{}")
