"""`/mcp`: the Model Context Protocol over HTTP and WebSockets."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from fastapi import APIRouter, Response
from fastapi import Request as HTTPRequest
from fastapi.responses import StreamingResponse
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_REQUEST, PARSE_ERROR, UNSUPPORTED_PROTOCOL_VERSION, RequestId
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

from repl_env.integrations.mcp import BadMessage

from .manager import SessionManager
from .mcp_tools import (
    CLOSE,
    CREATE,
    MCPToolServer,
    RPCRequest,
    error_reply,
    read,
    request_error_reply,
    result_of,
)
from .protocol import CancelArguments, ClientRequest, ServerReply
from .routing import note_error, run_until_disconnect
from .session import ServerSession
from .tenants import RequestError, socket_closed_error, tenant_of
from .websocket import Receive, Scope, Send, SessionSocket, opened

# WebSocket `/mcp`: JSON-RPC in text frames, about the session of the socket.


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


# `MCPResponseStream`: the notifications and the response of one request over HTTP.

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


# `/mcp` over HTTP: the protocol's streamable HTTP, and OpenEnv's plain JSON-RPC.
#
# A client of streamable HTTP begins with `initialize`, gets its session in `Mcp-Session-Id`, and
# repeats that header in each request. A client of OpenEnv may name a session in the parameters,
# and gets the status 200 with every JSON-RPC error.

SESSION = "Mcp-Session-Id"
VERSION = "MCP-Protocol-Version"

_EVENTS = "text/event-stream"
_STREAMED = {"Cache-Control": "no-cache, no-transform", "X-Accel-Buffering": "no"}


class MCPRoutes:
    """Handlers of the routes."""

    def __init__(self, manager: SessionManager, tool_server: MCPToolServer) -> None:
        self._manager = manager
        self._tool_server = tool_server

    async def post(self, request: HTTPRequest) -> Response:
        """Take one message of the Model Context Protocol."""
        request_id: RequestId | None = None
        try:
            tenant = tenant_of(request.scope)
            body = await request.body()
            if not body:  # no message of any client, so OpenEnv's have no say here
                empty = BadMessage(INVALID_REQUEST, "the request has no body: send one message")
                return _json(error_reply(None, empty), 400)
            message = await self._manager.json_codec.read(body, read, tenant)
            if not isinstance(message, RPCRequest):
                await self._take(request, message.cancels)
                return Response(status_code=202)
            request_id = message.id
            return await self._answer(request, replace(message, version=_version(request)))
        except BadMessage as error:
            return _failed(
                request, 400, error_reply(error.id if request_id is None else request_id, error)
            )
        except MCPError as error:
            return _json(error_reply(request_id, error))
        except RequestError as refusal:
            note_error(request, refusal)
            return _failed(request, refusal.status, request_error_reply(request_id, refusal))

    async def delete(self, request: HTTPRequest) -> Response:
        """End the session that the header `Mcp-Session-Id` names."""
        token = request.headers.get(SESSION)
        if token is None:
            missing = BadMessage(INVALID_REQUEST, f"the header {SESSION} is needed")
            return _json(error_reply(None, missing), 400)
        try:
            await self._manager.find(tenant_of(request.scope), token).close()
        except RequestError as refusal:
            note_error(request, refusal)
            return _json(request_error_reply(None, refusal), refusal.status)
        return Response(status_code=204)

    async def _answer(self, request: HTTPRequest, call: RPCRequest) -> Response:
        manager, tenant = self._manager, tenant_of(request.scope)
        if call.method == CREATE:
            session = await run_until_disconnect(request, manager.open(tenant))
            return _json(result_of(call.id, {"session_id": session.token}))
        if call.method == CLOSE:
            await manager.find(tenant, call.needed_session).close()
            result = {"session_id": call.needed_session, "closed": True}
            return _json(result_of(call.id, result))
        token = request.headers.get(SESSION) or call.named_session
        if token is not None:
            return await self._ask(request, manager.find(tenant, token), call)
        if call.method != "tools/call":
            answer = result_of(call.id, await self._tool_server.result(call))
            if call.method != "initialize":
                return _json(answer)
            session = await run_until_disconnect(request, manager.open(tenant))
            session.confirmed = False  # until the next message confirms the initialization
            return _json(answer, headers={SESSION: session.token})
        return await run_until_disconnect(request, self._pass(request, call))

    async def _pass(self, request: HTTPRequest, call: RPCRequest) -> Response:
        """Serve a request in a session that is closed afterwards."""
        session = await self._manager.open(tenant_of(request.scope))
        try:
            return await self._ask(request, session, call)
        finally:
            await session.close()

    async def _ask(
        self, request: HTTPRequest, session: ServerSession, call: RPCRequest
    ) -> Response:
        """Serve a request in a session: streamed, with progress, if the client accepts a stream."""
        # Not bounded here: each request holds a connection, and its body is accounted to its
        # tenant.
        takes_streams = SESSION in request.headers and _EVENTS in request.headers.get("accept", "")
        streams = call.method == "tools/call" and takes_streams
        tools = self._tool_server.tools_of(session)
        name = tools.begin(call.id)
        stream = MCPResponseStream(call.id, partial(tools.end, call.id, name))
        session.submit(ClientRequest("mcp", call, id=name, stream=streams), stream)
        if streams:
            return StreamingResponse(stream.events(), headers=_STREAMED, media_type=_EVENTS)
        return _json(await stream.answer())

    async def _take(self, request: HTTPRequest, cancels: RequestId | None) -> None:
        """Take a notification for a session; `cancels` is the request that it ends, if it does."""
        token = request.headers.get(SESSION)
        if token is None:
            return
        session = self._manager.find(tenant_of(request.scope), token)
        session.confirmed = True
        name = None if cancels is None else self._tool_server.tools_of(session).names.get(cancels)
        if name is not None:
            await session.cancel(name)


def _version(request: HTTPRequest) -> str | None:
    """The protocol version of a request, if it has one.

    Raises:
        BadMessage: the request has an unsupported version. The error lists the supported ones, to
            which clients that know an older version fall back.
    """
    version = request.headers.get(VERSION)
    if version is None or version in HANDSHAKE_PROTOCOL_VERSIONS:
        return version
    data = {"supported": list(HANDSHAKE_PROTOCOL_VERSIONS), "requested": version[:100]}
    message = "this version of the protocol is not served over HTTP: it has no sessions"
    raise BadMessage(UNSUPPORTED_PROTOCOL_VERSION, message, data=data)


def _failed(request: HTTPRequest, status: int, answer: ServerReply) -> Response:
    """An error, with the status of streamable HTTP, or 200 for OpenEnv's clients."""
    streamable = SESSION in request.headers or VERSION in request.headers
    return _json(answer, status if streamable else 200)


def _json(
    answer: ServerReply, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    return Response(answer.data, status, headers, media_type="application/json")


_MESSAGE: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "properties": {
                        "jsonrpc": {"type": "string", "const": "2.0"},
                        "id": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
                        "method": {"type": "string"},
                        "params": {"type": "object"},
                    },
                    "required": ["jsonrpc", "method"],
                }
            }
        },
    }
}


_NAMED: dict[str, Any] = {
    "parameters": [
        {
            "name": SESSION,
            "in": "header",
            "required": True,
            "schema": {"type": "string"},
            "description": "The session to end, as the response to `initialize` named it.",
        }
    ]
}


def mcp_router(manager: SessionManager, tool_server: MCPToolServer) -> APIRouter:
    """Create the routes."""
    routes = MCPRoutes(manager, tool_server)
    made = APIRouter(tags=["mcp"])
    statuses: dict[int | str, dict[str, Any]] = {
        202: {"description": "The notification was accepted."},
        400: {"description": "JSON-RPC error, for clients of streamable HTTP."},
        404: {"description": "Unknown session, for clients of streamable HTTP."},
        429: {"description": "Quota exceeded, for clients of streamable HTTP."},
        503: {"description": "No session is free, for clients of streamable HTTP."},
    }
    about: dict[str, Any] = {"response_model": None, "responses": statuses}
    made.add_api_route("/mcp", routes.post, methods=["POST"], openapi_extra=_MESSAGE, **about)
    made.add_api_route(
        "/mcp", routes.delete, methods=["DELETE"], status_code=204, openapi_extra=_NAMED, **about
    )
    return made
