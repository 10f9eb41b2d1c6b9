"""`MCPToolServer`: MCP requests about one session, answered with the SDK's server."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar
from weakref import WeakKeyDictionary, proxy

import anyio
from mcp.server.connection import Connection
from mcp.server.runner import serve_one
from mcp.shared.exceptions import MCPError, NoBackChannelError
from mcp.shared.transport_context import TransportContext
from mcp_types import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    JSONRPCNotification,
    JSONRPCRequest,
    RequestId,
)
from mcp_types.version import LATEST_HANDSHAKE_VERSION
from pydantic import ValidationError

from repl_env.episode.effects import OnOutput
from repl_env.errors import EpisodeAborted, EpisodeDone, NotReset
from repl_env.integrations.mcp import (
    LONGEST_CELL_S,
    BadMessage,
    ToolCalls,
    instructions,
    message_of,
    parse,
    server,
)
from repl_env.models import REPLAction, REPLObservation

from .environments import EnvironmentAdapter
from .manager import SessionManager
from .protocol import ClientRequest, FollowUpArguments, ServerReply, request_error_of, text_of
from .session import PendingRequest, ServerSession
from .settings import Settings
from .tenants import RequestError

# Messages of the Model Context Protocol, and their error codes. No I/O.
#
# As in OpenEnv, a request may lack an id and still gets a response, and may name a session in its
# parameters.

CREATE = "openenv/session/create"
CLOSE = "openenv/session/close"

# Reserved by JSON-RPC for errors of servers; OpenEnv uses the same code.
SERVER_ERROR = -32000

# JSON-RPC codes by error code. Others are SERVER_ERROR; `data` has the error code.
_CODES = {
    "INVALID_JSON": PARSE_ERROR,
    "UNKNOWN_TYPE": METHOD_NOT_FOUND,
    "VALIDATION_ERROR": INVALID_PARAMS,
    "UNKNOWN_SESSION": INVALID_PARAMS,
    "EXECUTION_ERROR": INTERNAL_ERROR,
    "SESSION_ERROR": INTERNAL_ERROR,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RPCRequest:
    """A request. `version`: of the protocol; None if unknown."""

    method: str
    params: dict[str, Any]
    id: RequestId | None = None
    version: str | None = None

    @property
    def named_session(self) -> str | None:
        """The session in the parameters, as OpenEnv's clients name it.

        Raises:
            BadMessage: `session_id` is not a string.
        """
        token = self.params.get("session_id")
        if token is not None and not isinstance(token, str):
            raise BadMessage(INVALID_PARAMS, "session_id must be a string", self.id)
        return token or None

    @property
    def needed_session(self) -> str:
        """The session in the parameters; raises BadMessage without one."""
        token = self.named_session
        if token is None:
            raise BadMessage(INVALID_PARAMS, "session_id is needed", self.id)
        return token


@dataclass(frozen=True, slots=True)
class RPCNotification:
    """A notification. `cancels`: the id of the request that it cancels."""

    cancels: RequestId | None = None


Message: TypeAlias = RPCRequest | RPCNotification


def read(given: str | bytes | dict[str, Any]) -> Message:
    """Parse a text, or a value parsed from JSON; raises BadMessage."""
    message = message_of(given) if isinstance(given, dict) else parse(given)
    match message:
        case JSONRPCRequest(method=method, params=params, id=id):
            return RPCRequest(method=method, params=params or {}, id=id)
        case JSONRPCNotification(method="notifications/cancelled", params=params):
            named = (params or {}).get("requestId")
            return RPCNotification(named if isinstance(named, (str, int)) else None)
        case JSONRPCNotification(method=method, params=params):
            if not method.startswith("notifications/"):
                return RPCRequest(method=method, params=params or {})
    return RPCNotification()


def code_of(refusal: RequestError) -> int:
    """The JSON-RPC code for an error."""
    return _CODES.get(refusal.code, SERVER_ERROR)


# `SessionTools`: the MCP tools of one session.

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
    """A session as a `ToolSession` of `repl_env.integrations.mcp`."""

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


# `MCPToolServer`: answers MCP requests with the SDK's server.
#
# Sessions belong to the session manager, so that quotas, tenants and ends apply to them as to
# others. The SDK's own session manager is not used.


class MCPToolServer:
    """Answers MCP requests, about a session of `manager` or about none."""

    def __init__(self, manager: SessionManager) -> None:
        self._manager = manager
        self._tools: WeakKeyDictionary[ServerSession, SessionTools] = WeakKeyDictionary()
        self._server = server(instructions(isolated=manager.settings.isolation != "process"))

    def tools_of(self, session: ServerSession) -> SessionTools:
        """The tools that act on `session`."""
        tools = self._tools.get(session)
        if tools is None:
            tools = SessionTools(session, session.adapter, self._manager.settings)
            self._tools[session] = tools
        return tools

    async def handle(
        self, session: ServerSession, pending: PendingRequest, request: ClientRequest
    ) -> ServerReply:
        """Handle a request to a session; with `stream`, progress goes to the sink of the reply."""
        given = request.data
        try:
            call = read(given) if isinstance(given, dict) else given
        except BadMessage as error:
            call = error
        if isinstance(call, BadMessage):
            return error_reply(call.id, call)
        if isinstance(call, RPCNotification):
            return result_of(None, {})  # here, each message has an answer
        return await _answered(
            call, self._about(session, pending if request.stream else None, call)
        )

    async def result(self, call: RPCRequest) -> Mapping[str, Any]:
        """The result of a request that is about no session.

        Raises:
            BadMessage, MCPError: the request failed.
        """
        return await self._served(call, None, None)

    async def _about(
        self, session: ServerSession, progress_to: PendingRequest | None, call: RPCRequest
    ) -> Mapping[str, Any]:
        if call.method == CREATE:
            return {"session_id": session.token}
        if call.method == CLOSE:
            return await self._close(session, call)
        if call.method == "tools/call":
            self._manager.check_open()
        return await self._served(call, self.tools_of(session).calls, progress_to)

    async def _close(self, session: ServerSession, call: RPCRequest) -> Mapping[str, Any]:
        token = call.needed_session
        if token == session.token:
            raise BadMessage(INVALID_REQUEST, "a session cannot be closed from within", call.id)
        await self._manager.find(session.tenant, token).close()
        return {"session_id": token, "closed": True}

    async def _served(
        self, call: RPCRequest, calls: ToolCalls | None, pending: PendingRequest | None
    ) -> Mapping[str, Any]:
        if call.method.startswith(("tools/", "resources/")) and not _has_tools(self._manager):
            raise BadMessage(INTERNAL_ERROR, "this environment has no tools", call.id)
        connection = Connection.from_envelope(call.version or LATEST_HANDSHAKE_VERSION, None, None)
        try:
            return await serve_one(
                self._server,
                _MCPDispatchContext(call, pending),
                call.method,
                call.params,
                connection=connection,
                lifespan_state=calls,
            )
        except ValidationError:
            raise MCPError(INVALID_PARAMS, "Invalid request parameters") from None


class _MCPDispatchContext:
    """A request as the SDK's server sees it (its `DispatchContext`)."""

    transport = TransportContext(kind="repl-env", can_send_request=False)
    can_send_request = False
    message_metadata = None

    def __init__(self, call: RPCRequest, pending: PendingRequest | None) -> None:
        # The SDK takes a request without an id for a notification.
        self.request_id: RequestId = "" if call.id is None else call.id
        self.cancel_requested = anyio.Event()
        self._pending = pending
        meta = call.params.get("_meta")
        self._token = meta.get("progressToken") if isinstance(meta, dict) else None

    async def send_raw_request(
        self, method: str, params: Mapping[str, Any] | None, opts: Any = None
    ) -> dict[str, Any]:
        raise NoBackChannelError(method)

    async def notify(self, method: str, params: Mapping[str, Any] | None, opts: Any = None) -> None:
        if self._pending is not None:
            payload = {"jsonrpc": "2.0", "method": method, "params": dict(params or {})}
            await self._pending.sink.deliver(
                self._pending.request.id, ServerReply("output", text_of(payload))
            )

    async def progress(
        self, progress: float, total: float | None = None, message: str | None = None
    ) -> None:
        payload = {"progressToken": self._token, "progress": progress}
        more = {"total": total, "message": message}
        payload |= {name: value for name, value in more.items() if value is not None}
        await self.notify("notifications/progress", payload)


def result_of(id: RequestId | None, result: Mapping[str, Any]) -> ServerReply:
    """The response with a result."""
    return ServerReply("mcp", text_of({"jsonrpc": "2.0", "id": id, "result": result}))


def error_reply(id: RequestId | None, error: BadMessage | MCPError) -> ServerReply:
    """The response with a JSON-RPC error."""
    payload = {"code": error.code, "message": error.message}
    if error.data is not None:
        payload["data"] = error.data
    return ServerReply("mcp", text_of({"jsonrpc": "2.0", "id": id, "error": payload}))


def request_error_reply(id: RequestId | None, refusal: RequestError) -> ServerReply:
    """The response with the JSON-RPC form of a RequestError."""
    return error_reply(id, MCPError(code_of(refusal), refusal.message, refusal.data()))


async def _answered(call: RPCRequest, work: Awaitable[Mapping[str, Any]]) -> ServerReply:
    try:
        return result_of(call.id, await work)
    except (BadMessage, MCPError) as error:
        return error_reply(call.id, error)
    except RequestError as refusal:
        return request_error_reply(call.id, refusal)


def _has_tools(manager: SessionManager) -> bool:
    """Return whether the environments are REPL environments, which the tools are for."""
    return issubclass(manager.action, REPLAction) and issubclass(
        manager.observation, REPLObservation
    )
