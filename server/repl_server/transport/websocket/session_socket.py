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

    def __init__(self, host: SessionManager) -> None:
        self._host = host

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        named = SUBPROTOCOL in scope.get("subprotocols", ())
        if await opened(receive, send, SUBPROTOCOL if named else None):
            # What comes wakes that task, and not through all the layers that this one is in.
            await asyncio.create_task(self._serve(scope, receive, send, named))

    async def _serve(self, scope: Scope, receive: Receive, send: Send, named: bool) -> None:
        speech = FrameCodec(self._host.action, named)
        await SessionSocket(self._host, scope, receive, send, speech, _named_session(scope)).serve()


async def opened(receive: Receive, send: Send, subprotocol: str | None = None) -> bool:
    """Let a client in that asks for a socket; whether it still does."""
    if (await receive())["type"] != "websocket.connect":
        return False
    await send({"type": "websocket.accept", "subprotocol": subprotocol})
    return True


class SocketCodec(Protocol):
    """How a socket's frames are read and written."""

    @property
    def named(self) -> bool:
        """Whether the client says by a frame which session it plays."""

    def read(self, frame: str | bytes | None) -> ClientRequest | InvalidFrame | None:
        """What a frame asks for; None: nothing."""

    def frame(self, id: str | None, reply: ServerReply) -> str | None:
        """The frame of a reply; None: there is none."""


class SessionSocket:
    """One open WebSocket: what it reads, and the session that it plays.

    `token`: of a session that is there, to which the socket is added while it is open, as OpenEnv
    has it; None: one of its own, or that its frames name.
    """

    def __init__(
        self,
        host: SessionManager,
        scope: Scope,
        receive: Receive,
        send: Send,
        speech: SocketCodec,
        token: str | None = None,
    ) -> None:
        self._host = host
        self._owner = tenant_of(scope)
        self._meter = host.quotas.of(self._owner)
        self._messages = ReceiveAhead(receive, partial(host.inbound.change, self._owner))
        self._dialect = speech
        self._outlet = SocketWriter(send, speech.frame, self._refused)
        self._token = None if speech.named else token
        self._session: ServerSession | None = None
        self._hung_up = False  # by the client, without a word
        self._closed = False  # by the client, with one

    async def serve(self) -> None:
        """Answer frames until one side leaves."""
        try:
            await self._serve()
        except asyncio.CancelledError:
            if not self._outlet.was_ended():
                raise
        except OSError:
            self._hung_up = True
        finally:
            self._let_go()
        if not self._hung_up:
            await self._outlet.close()

    # ── its frames ───────────────────────────────────────────────────────────────────────────────

    async def _serve(self) -> None:
        if not self._dialect.named:
            opening = self._open() if self._token is None else self._resume(self._token)
            if not await self._begin(None, opening):
                return
        while not self._outlet.gone:
            message = await self._messages.next()
            if message["type"] != "websocket.receive":
                self._hung_up = True
                return
            asked = await self._read(message)
            try:
                self._meter.request()
            except RequestError as refusal:
                if asked is not None:
                    await self._take(InvalidFrame(refusal, asked.id, asked.size))
                # Whoever asks too often is not read meanwhile: refusals cost time as well.
                await asyncio.sleep(min(refusal.retry_after or _PENALTY, _PENALTY))
            else:
                if asked is not None and not await self._take(asked):
                    return

    async def _read(self, message: Message) -> ClientRequest | InvalidFrame | None:
        frame = message.get("text")
        if frame is None:
            return self._dialect.read(message.get("bytes"))
        if len(frame) < LARGE:
            return self._dialect.read(frame)
        try:
            return await self._host.reading.read(frame, self._dialect.read, self._owner)
        except RequestError as refusal:
            return InvalidFrame(refusal, None, len(frame))

    async def _take(self, asked: ClientRequest | InvalidFrame) -> bool:
        """Do what a frame asks for, or hand it to the session; False if it was the last."""
        session = self._session
        name = "" if isinstance(asked, InvalidFrame) else asked.type
        if name in _OPENINGS and session is None:
            assert isinstance(asked, ClientRequest)
            opening = self._open() if name == "open" else self._resume(asked.data.token)
            await self._begin(asked.id, opening, resumed=name == "resume")
        elif name == "close":
            self._closed, self._outlet.leaving = True, (1000, "")
            return False
        elif session is None or name in _OPENINGS:
            await self._outlet.deliver(
                asked.id, ServerReply.refusing(_out_of_order(asked, session is None))
            )
        elif name == "cancel":
            assert isinstance(asked, ClientRequest)
            found = await session.cancel(asked.data.request)
            await self._outlet.deliver(
                asked.id, ServerReply("cancelled", text_of({"running": found}))
            )
        else:
            session.ask(asked, self._outlet)
            if not session.has_room:
                await session.room()
        return True

    async def _begin(
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
            await self._outlet.deliver(id, ServerReply.refusing(refusal))
            if not self._dialect.named:
                self._outlet.leaving = self._outlet.leaving or (1000, refusal.message)
            return False
        self._session = session
        self._outlet.held = True
        if resumed:
            self._host.watch.session_resumed(session)
        session.take(self._outlet, resumable=self._dialect.named)
        if self._dialect.named:
            await self._outlet.deliver(
                id, ServerReply("session", text_of(session.facts(resumed=resumed)))
            )
        return True

    async def _open(self) -> ServerSession:
        """A new session. Whoever hangs up while it waits for one leaves the line."""
        opening = asyncio.create_task(self._host.open(self._owner))
        try:
            await asyncio.sleep(0)  # it is there then, where nobody waits
            if not opening.done():
                await self._while_there(opening)
            return await asyncio.shield(opening)
        except BaseException:
            opening.add_done_callback(_end_if_made)
            opening.cancel()
            raise

    async def _while_there(self, opening: asyncio.Task[ServerSession]) -> None:
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
        return self._host.find(self._owner, token)

    # ── its end ──────────────────────────────────────────────────────────────────────────────────

    def _refused(self, refusal: RequestError) -> None:
        session = None if self._session is None else self._session.id
        self._host.watch.refused(refusal, self._owner, session=session)

    def _let_go(self) -> None:
        """What becomes of the session: it waits to be resumed, ends, or is somebody else's."""
        self._outlet.gone = True
        self._messages.close()
        session, self._session = self._session, None
        if session is None:
            return
        if self._token is not None:
            session.detach(self._outlet)
        elif self._dialect.named and not self._closed:
            session.leave(self._outlet)
        else:
            session.detach(self._outlet)
            session.end()


_OPENINGS = frozenset({"open", "resume"})


def _named_session(scope: Scope) -> str | None:
    named = parse_qs(scope.get("query_string", b"").decode("latin-1")).get("session_id")
    return named[0] if named else None


def _out_of_order(asked: ClientRequest | InvalidFrame, first: bool) -> RequestError:
    if isinstance(asked, InvalidFrame):
        return asked.refusal
    return validation_error(
        "type", "open or resume comes first" if first else "there is a session already"
    )


def _end_if_made(opening: asyncio.Task[ServerSession]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().end()
