"""WebSocket `/mcp`: bare JSON-RPC in text frames, about a session that the socket has."""

from __future__ import annotations

import uuid

from mcp_types import PARSE_ERROR, RequestId

from repl_env.mcp.messages import BadMessage

from ..frames import Request
from ..hosting import Host
from ..replies import Reply
from ..requests import Cancel
from ..transport.outlet import Send
from ..transport.websocket import Receive, Scope, Socket, opened
from .answers import refusing
from .requests import Call, read


class MCPSocketRoute:
    """The ASGI application behind WebSocket `/mcp`."""

    def __init__(self, host: Host) -> None:
        self._host = host

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if await opened(receive, send):
            await Socket(self._host, scope, receive, send, MCPDialect()).serve()


class MCPDialect:
    """One socket's frames: a `repl_server.transport.websocket.Speech`."""

    named = False

    def __init__(self) -> None:
        # Ids of the requests that are to be answered, by their names in the session.
        self._ids: dict[str, RequestId | None] = {}

    def read(self, frame: str | bytes | None) -> Request | None:
        """As `Speech.read`."""
        size = len(frame or "")
        try:
            if not isinstance(frame, str):
                raise BadMessage(PARSE_ERROR, "a text frame is wanted, not a binary one")
            message = read(frame)
        except BadMessage as error:
            return Request("mcp", error, size=size)
        if isinstance(message, Call):
            name = uuid.uuid4().hex
            self._ids[name] = message.id
            return Request("mcp", message, id=name, stream=True, size=size)
        for name, asked in self._ids.items():
            if asked is not None and asked == message.cancels:
                del self._ids[name]  # who gave it up wants no answer
                return Request("cancel", Cancel(request=name))
        return None

    def frame(self, id: str | None, reply: Reply) -> str | None:
        """As `Speech.frame`."""
        if reply.type == "cancelled":
            return None  # it was a notification
        if id is not None and id not in self._ids:
            return None
        if reply.type == "output":
            return reply.data
        asked = None if id is None else self._ids.pop(id)
        return reply.data if reply.refusal is None else refusing(asked, reply.refusal).data
