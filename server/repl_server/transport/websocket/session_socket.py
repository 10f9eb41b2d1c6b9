"""`/ws`: one WebSocket, OpenEnv's frames or those of `repl-env.v1`, and the session it plays.

Bare ASGI: a frame passes through nothing that it does not need.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from functools import partial
from typing import Any, Protocol, TypeAlias
from urllib.parse import parse_qs

from repl_env.client.protocol.refusal_codes import SUBPROTOCOL

from ...protocol.frames import ClientRequest, FrameCodec, InvalidFrame
from ...protocol.json_codec import LARGE
from ...protocol.replies import ServerReply, text_of
from ...protocol.request_error import RequestError
from ...protocol.validation import validation_error
from ...sessions.manager import SessionManager
from ...sessions.server_session import ServerSession
from ...tenants.tenant import tenant_of
from .receive_ahead import ReceiveAhead
from .socket_writer import Message, Send, SocketWriter

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]

# Seconds that a socket is not read at most whose client asks too often.
_PENALTY = 1.0


class SessionSocketRoute:
    """The ASGI application behind `/ws`."""

    def __init__(self, manager: SessionManager) -> None:
        self._manager = manager

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        named = SUBPROTOCOL in scope.get("subprotocols", ())
        if await opened(receive, send, SUBPROTOCOL if named else None):
            # What comes wakes that task, and not through all the layers that this one is in.
            await asyncio.create_task(self._serve(scope, receive, send, named))

    async def _serve(self, scope: Scope, receive: Receive, send: Send, named: bool) -> None:
        codec = FrameCodec(self._manager.action, named)
        await SessionSocket(
            self._manager, scope, receive, send, codec, _named_session(scope)
        ).serve()


async def opened(receive: Receive, send: Send, subprotocol: str | None = None) -> bool:
    """Let a client in that asks for a socket; whether it still does."""
    if (await receive())["type"] != "websocket.connect":
        return False
    await send({"type": "websocket.accept", "subprotocol": subprotocol})
    return True


class SocketCodec(Protocol):
    """How a socket's frames are read and written."""

    @property
    def is_v1(self) -> bool:
        """Whether the client says by a frame which session it plays."""

    def read(self, frame: str | bytes | None) -> ClientRequest | InvalidFrame | None:
        """What a frame asks for; None: nothing."""

    def write(self, id: str | None, reply: ServerReply) -> str | None:
        """The frame of a reply; None: there is none."""


class SessionSocket:
    """One open WebSocket: what it reads, and the session that it plays.

    `token`: of a session that is there, to which the socket is added while it is open, as OpenEnv
    has it; None: one of its own, or that its frames name.
    """

    def __init__(
        self,
        manager: SessionManager,
        scope: Scope,
        receive: Receive,
        send: Send,
        codec: SocketCodec,
        token: str | None = None,
    ) -> None:
        self._manager = manager
        self._tenant = tenant_of(scope)
        self._meter = manager.quotas.meter_of(self._tenant)
        self._messages = ReceiveAhead(receive, partial(manager.inbound.adjust, self._tenant))
        self._codec = codec
        self._writer = SocketWriter(send, codec.write, self._refused)
        self._token = None if codec.is_v1 else token
        self._session: ServerSession | None = None
        self._disconnected = False  # by the client, without a word
        self._closed = False  # by the client, with one

    async def serve(self) -> None:
        """Answer frames until one side leaves."""
        try:
            await self._serve()
        except asyncio.CancelledError:
            if not self._writer.was_ended():
                raise
        except OSError:
            self._disconnected = True
        finally:
            self._release()
        if not self._disconnected:
            await self._writer.close()

    # ── its frames ───────────────────────────────────────────────────────────────────────────────

    async def _serve(self) -> None:
        if not self._codec.is_v1:
            opening = self._open() if self._token is None else self._resume(self._token)
            if not await self._attach(None, opening):
                return
        while not self._writer.gone:
            message = await self._messages.next()
            if message["type"] != "websocket.receive":
                self._disconnected = True
                return
            request = await self._read(message)
            try:
                self._meter.request()
            except RequestError as refusal:
                if request is not None:
                    await self._take(InvalidFrame(refusal, request.id, request.size))
                # Whoever asks too often is not read meanwhile: refusals cost time as well.
                await asyncio.sleep(min(refusal.retry_after or _PENALTY, _PENALTY))
            else:
                if request is not None and not await self._take(request):
                    return

    async def _read(self, message: Message) -> ClientRequest | InvalidFrame | None:
        frame = message.get("text")
        if frame is None:
            return self._codec.read(message.get("bytes"))
        if len(frame) < LARGE:
            return self._codec.read(frame)
        try:
            return await self._manager.json_codec.read(frame, self._codec.read, self._tenant)
        except RequestError as refusal:
            return InvalidFrame(refusal, None, len(frame))

    async def _take(self, request: ClientRequest | InvalidFrame) -> bool:
        """Do what a frame asks for, or hand it to the session; False if it was the last."""
        session = self._session
        name = "" if isinstance(request, InvalidFrame) else request.type
        if name in _OPENINGS and session is None:
            assert isinstance(request, ClientRequest)
            opening = self._open() if name == "open" else self._resume(request.data.token)
            await self._attach(request.id, opening, resumed=name == "resume")
        elif name == "close":
            self._closed, self._writer.closing = True, (1000, "")
            return False
        elif session is None or name in _OPENINGS:
            await self._writer.deliver(
                request.id, ServerReply.of_error(_out_of_order(request, session is None))
            )
        elif name == "cancel":
            assert isinstance(request, ClientRequest)
            found = await session.cancel(request.data.request)
            await self._writer.deliver(
                request.id, ServerReply("cancelled", text_of({"running": found}))
            )
        else:
            session.submit(request, self._writer)
            if not session.accepts_more:
                await session.wait_for_space()
        return True

    async def _attach(
        self,
        id: str | None,
        opening: Coroutine[Any, Any, ServerSession],
        *,
        resumed: bool = False,
    ) -> bool:
        """Play the session that `opening` has; False if it has none, which the client is told."""
        try:
            session = await opening
        except RequestError as refusal:
            await self._writer.deliver(id, ServerReply.of_error(refusal))
            if not self._codec.is_v1:
                self._writer.closing = self._writer.closing or (1000, refusal.message)
            return False
        self._session = session
        self._writer.has_session = True
        if resumed:
            self._manager.telemetry.session_resumed(session)
        session.attach(self._writer, resumable=self._codec.is_v1)
        if self._codec.is_v1:
            await self._writer.deliver(
                id, ServerReply("session", text_of(session.facts(resumed=resumed)))
            )
        return True

    async def _open(self) -> ServerSession:
        """A new session. Whoever hangs up while it waits for one leaves the line."""
        opening = asyncio.create_task(self._manager.open(self._tenant))
        try:
            await asyncio.sleep(0)  # it is there then, where nobody waits
            if not opening.done():
                await self._wait_while_connected(opening)
            return await asyncio.shield(opening)
        except BaseException:
            opening.add_done_callback(_end_if_made)
            opening.cancel()
            raise

    async def _wait_while_connected(self, opening: asyncio.Task[ServerSession]) -> None:
        """Wait for it; OSError if the client leaves before."""
        leaving = asyncio.create_task(self._messages.left())
        try:
            await asyncio.wait([opening, leaving], return_when=asyncio.FIRST_COMPLETED)
            if not opening.done():
                leaving.result()
                raise OSError("the client has gone")
        finally:
            leaving.cancel()

    async def _resume(self, token: str) -> ServerSession:
        return self._manager.find(self._tenant, token)

    # ── its end ──────────────────────────────────────────────────────────────────────────────────

    def _refused(self, refusal: RequestError) -> None:
        session = None if self._session is None else self._session.id
        self._manager.telemetry.refused(refusal, self._tenant, session=session)

    def _release(self) -> None:
        """What becomes of the session: it waits to be resumed, ends, or is somebody else's."""
        self._writer.gone = True
        self._messages.close()
        session, self._session = self._session, None
        if session is None:
            return
        if self._token is not None:
            session.detach_guest(self._writer)
        elif self._codec.is_v1 and not self._closed:
            session.detach(self._writer)
        else:
            session.detach_guest(self._writer)
            session.end()


_OPENINGS = frozenset({"open", "resume"})


def _named_session(scope: Scope) -> str | None:
    named = parse_qs(scope.get("query_string", b"").decode("latin-1")).get("session_id")
    return named[0] if named else None


def _out_of_order(request: ClientRequest | InvalidFrame, first: bool) -> RequestError:
    if isinstance(request, InvalidFrame):
        return request.refusal
    return validation_error(
        "type", "open or resume comes first" if first else "there is a session already"
    )


def _end_if_made(opening: asyncio.Task[ServerSession]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().end()
