"""Handlers of requests: one function for each request type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ..protocol.frames import ClientRequest
from ..protocol.replies import ServerReply, observation_text, text_of
from .output_stream import OutputStream
from .request_queue import PendingRequest
from .server_session import Handler, ServerSession


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
