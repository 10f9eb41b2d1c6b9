"""What each request of a client comes to: one function for each kind."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from .asked import Asked
from .frames import Request
from .replies import Reply, observation_text, text_of
from .streaming import Streamed

if TYPE_CHECKING:
    from .hosted import HostedSession


async def _reset(session: HostedSession, asked: Asked, request: Request) -> Reply:
    return await _observed(session, await session.begin(request.data), request)


async def _step(session: HostedSession, asked: Asked, request: Request) -> Reply:
    if not request.stream:
        observation = await session.play(request.data, request.timeout_s, None)
    else:
        async with Streamed(asked) as streamed:
            observation = await session.play(request.data, request.timeout_s, streamed.take)
    return await _observed(session, observation, request)


async def _state(session: HostedSession, asked: Asked, request: Request) -> Reply:
    return Reply("state", text_of(await session.episodes.state()))


async def _variables(session: HostedSession, asked: Asked, request: Request) -> Reply:
    return Reply("variables", text_of({"names": await session.episodes.variables()}))


async def _follow_up(session: HostedSession, asked: Asked, request: Request) -> Reply:
    return await _observed(session, await session.episodes.follow_up(request.data), request)


async def _draft(session: HostedSession, asked: Asked, request: Request) -> Reply:
    return Reply("draft", text_of({"value": await session.episodes.draft()}))


async def _branch(session: HostedSession, asked: Asked, request: Request) -> Reply:
    branch = await session.host.branch(session, request.data.seed)
    branch.cpu = session.cpu  # what is seen of one is seen of both
    return Reply("branch", text_of({"session_id": branch.id, "token": branch.token}))


async def _mcp(session: HostedSession, asked: Asked, request: Request) -> Reply:
    return await session.host.mcp.about(session, asked)


async def _observed(session: HostedSession, observation: Any, request: Request) -> Reply:
    pieces = observation_text(observation, beside=request.id is None)
    return Reply("observation", await session.host.reading.written(pieces))


Handler: TypeAlias = Callable[["HostedSession", Asked, Request], Awaitable[Reply]]
# By the type of a request. A handler raises what its client is told as a refusal.
HANDLERS: Final[Mapping[str, Handler]] = {
    "reset": _reset,
    "step": _step,
    "state": _state,
    "variables": _variables,
    "follow_up": _follow_up,
    "draft": _draft,
    "branch": _branch,
    "mcp": _mcp,
}
