"""`SessionTools`: the MCP tools of one session."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable
from typing import Any, TypeVar
from weakref import proxy

from mcp.shared.exceptions import MCPError
from mcp_types import RequestId

from repl_env.episode.session_effects import OnOutput
from repl_env.errors import EpisodeAborted, EpisodeDone, NotReset
from repl_env.integrations.mcp.tool_calls import LONGEST_CELL_S, ToolCalls
from repl_env.models import REPLAction, REPLObservation

from ..protocol.error_mapping import request_error_of
from ..protocol.request_error import RequestError
from ..protocol.request_models import FollowUpArguments
from ..sessions.environments.environment_adapter import EnvironmentAdapter
from ..sessions.server_session import ServerSession
from ..settings import Settings
from .jsonrpc_messages import code_of

T = TypeVar("T")

_SCORED = "this task is scored: only its host may restart it, not this tool"


class SessionTools:
    """The MCP tools of one session, and its unanswered requests.

    `names`: ids of these requests in the session, by JSON-RPC id.
    """

    def __init__(
        self, session: ServerSession, adapter: EnvironmentAdapter, settings: Settings
    ) -> None:
        longest = min(max(LONGEST_CELL_S, settings.limits.timeout), settings.longest_step_s)
        self.calls = ToolCalls(_SessionPlayer(session, adapter), longest_cell_s=longest)
        self.names: dict[RequestId, str] = {}

    def begin(self, id: RequestId | None) -> str:
        """A unique id in the session for the request `id`."""
        name = uuid.uuid4().hex
        if id is not None:
            self.names[id] = name
        return name

    def end(self, id: RequestId | None, name: str) -> None:
        """Forget a request that has its response."""
        if id is not None and self.names.get(id) == name:
            del self.names[id]


class _SessionPlayer:
    """A session as a `ToolSession` of `repl_env.integrations.mcp.tool_calls`."""

    def __init__(self, session: ServerSession, adapter: EnvironmentAdapter) -> None:
        # Weak: the tool server keeps these tools by their session, for as long as the session
        # lives.
        self._session: ServerSession = proxy(session)
        self._adapter = adapter

    @property
    def files(self) -> Any:
        """As `ToolSession.files`."""
        return self._adapter.files

    async def reset(self, **request: Any) -> REPLObservation:
        """As `ToolSession.reset`. The player of a scored task may not restart it."""
        if self._adapter.scored:
            raise ValueError(_SCORED)
        return await self._translated(self._session.reset(request))

    async def follow_up(self, task_prompt: str, max_iterations: int) -> REPLObservation:
        """As `ToolSession.follow_up`. The player of a scored task may not replace it."""
        if self._adapter.scored:
            raise ValueError(_SCORED)
        arguments = FollowUpArguments(task_prompt=task_prompt, max_iterations=max_iterations)
        return await self._translated(self._adapter.follow_up(arguments))

    async def step(
        self, action: REPLAction, timeout_s: float | None, on_output: OnOutput | None
    ) -> REPLObservation:
        """As `ToolSession.step`."""
        return await self._translated(self._session.step(action, timeout_s, on_output))

    async def _translated(self, work: Awaitable[T]) -> T:
        """Await `work`, and turn its errors into errors for the model or of the protocol.

        The message of a failed environment or rubric may reveal what the model must not know, so
        only the log has the message, under the id of the error.
        """
        try:
            return await work
        except (NotReset, EpisodeDone):
            raise
        except EpisodeAborted as error:
            if self._session.closing:  # it was taken from under the call, and no reset helps
                raise _failing(self._session.ended_error("EPISODE_ABORTED")) from error
            request_error_of(error)  # for the log
            raise
        except Exception as error:
            refusal = request_error_of(error)
            if refusal.code == "VALIDATION_ERROR":
                raise ValueError(refusal.message.removeprefix("data.")) from None
            if refusal.code == "EXECUTION_ERROR":
                refusal.message = "the environment failed"
            raise _failing(refusal) from error


def _failing(refusal: RequestError) -> MCPError:
    return MCPError(code_of(refusal), refusal.message, refusal.data())
