"""WebSocket `/mcp`: JSON-RPC in text frames, about the session of the socket."""

from __future__ import annotations

import uuid

from mcp_types import PARSE_ERROR, RequestId

from repl_env.integrations.mcp.mcp_messages import BadMessage

from ..protocol.frames import ClientRequest
from ..protocol.replies import ServerReply
from ..protocol.request_models import CancelArguments
from ..sessions.manager import SessionManager
from ..transport.websocket.session_socket import Receive, Scope, SessionSocket, opened
from ..transport.websocket.socket_writer import Send
from .jsonrpc_messages import RPCRequest, read
from .tool_server import request_error_reply


class MCPSocketRoute:
    """The ASGI application behind WebSocket `/mcp`."""

    def __init__(self, manager: SessionManager) -> None:
        self._manager = manager

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if await opened(receive, send):
            await SessionSocket(self._manager, scope, receive, send, MCPFrameCodec()).serve()


class MCPFrameCodec:
    """The frames of one socket, as a `SocketCodec`."""

    is_v1 = False

    def __init__(self) -> None:
        # JSON-RPC ids of requests without a response, by their ids in the session.
        self._ids: dict[str, RequestId | None] = {}

    def read(self, frame: str | bytes | None) -> ClientRequest | None:
        """As `SocketCodec.read`."""
        size = len(frame or "")
        try:
            if not isinstance(frame, str):
                raise BadMessage(PARSE_ERROR, "a text frame is wanted, not a binary one")
            message = read(frame)
        except BadMessage as error:
            return ClientRequest("mcp", error, size=size)
        if isinstance(message, RPCRequest):
            name = uuid.uuid4().hex
            self._ids[name] = message.id
            return ClientRequest("mcp", message, id=name, stream=True, size=size)
        for name, request_id in self._ids.items():
            if request_id is not None and request_id == message.cancels:
                del self._ids[name]  # a cancelled request gets no response
                return ClientRequest("cancel", CancelArguments(request=name))
        return None

    def write(self, id: str | None, reply: ServerReply) -> str | None:
        """As `SocketCodec.write`."""
        if reply.type == "cancelled":
            return None  # it was a notification
        if id is not None and id not in self._ids:
            return None
        if reply.type == "output":
            return reply.data
        request_id = None if id is None else self._ids.pop(id)
        return (
            reply.data
            if reply.refusal is None
            else request_error_reply(request_id, reply.refusal).data
        )
