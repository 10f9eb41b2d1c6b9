"""`MCPToolServer`: answers MCP requests with the SDK's server.

Sessions belong to the session manager, so that quotas, tenants and ends apply to them as to others.
The SDK's own session manager is not used.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Any
from weakref import WeakKeyDictionary

import anyio
from mcp.server.connection import Connection
from mcp.server.runner import serve_one
from mcp.shared.exceptions import MCPError, NoBackChannelError
from mcp.shared.transport_context import TransportContext
from mcp_types import INTERNAL_ERROR, INVALID_PARAMS, INVALID_REQUEST, RequestId
from mcp_types.version import LATEST_HANDSHAKE_VERSION
from pydantic import ValidationError

from repl_env.integrations.mcp.mcp_messages import BadMessage
from repl_env.integrations.mcp.mcp_server import instructions, server
from repl_env.integrations.mcp.tool_calls import ToolCalls
from repl_env.models import REPLAction, REPLObservation

from ..protocol.frames import ClientRequest
from ..protocol.replies import ServerReply, text_of
from ..protocol.request_error import RequestError
from ..sessions.manager import SessionManager
from ..sessions.request_queue import PendingRequest
from ..sessions.server_session import ServerSession
from .jsonrpc_messages import CLOSE, CREATE, RPCNotification, RPCRequest, code_of, read
from .session_tools import SessionTools


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
