"""`/ws`: a WebSocket with OpenEnv's frames or those of `repl-env.v1`, and its session.

Bare ASGI, so that frames pass through no framework.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from functools import partial
from typing import Any, Protocol, TypeAlias
from urllib.parse import parse_qs

from repl_env.client.protocol import SUBPROTOCOL

from .json_codec import LARGE
from .manager import SessionManager
from .protocol import (
    ClientRequest,
    FrameCodec,
    InvalidFrame,
    ServerReply,
    text_of,
    validation_error,
)
from .session import ServerSession
from .tenants import RequestError, tenant_of

# `SocketWriter`: sends the replies of one WebSocket.

Message: TypeAlias = MutableMapping[str, Any]
Send: TypeAlias = Callable[[Message], Awaitable[None]]

# Seconds for sending the close frame.
_FAREWELL = 1.0
# Bytes of the reason in a close frame (RFC 6455, section 5.5.1).
_REASON = 123
# Errors that close a socket even if it has a session.
_ENDS_SESSIONS = frozenset({"DRAINING", "SESSION_ERROR"})


class SocketWriter:
    """A `ReplySink` that sends frames. Created by the task that reads the socket.

    Args:
        send: of ASGI.
        frame: serializes a reply; None: the client gets no frame.
        refused: called for each error that is sent.

    Attributes:
        has_session: the socket has a session.
        closing: the code and the reason of the close frame.
    """

    def __init__(
        self,
        send: Send,
        frame: Callable[[str | None, ServerReply], str | None],
        refused: Callable[[RequestError], None],
    ) -> None:
        self.gone = False
        self.has_session = False
        self.blocked_since: float | None = None
        self.closing: tuple[int, str] | None = None
        self._send, self._frame, self._refused = send, frame, refused
        self._reader = _current()
        self._senders: set[asyncio.Task[Any]] = set()
        self._released: set[asyncio.Task[Any]] = set()

    async def deliver(self, id: str | None, reply: ServerReply) -> None:
        """Send a reply, unless the client has left."""
        if self.gone:
            return
        if reply.refusal is not None:
            self._refused(reply.refusal)
        frame = self._frame(id, reply)
        if frame is not None:
            if len(frame) >= LARGE:
                await asyncio.sleep(0)  # serializing took about as long as sending will
            await self._write(frame)
        if reply.refusal is not None:
            self._end_with(reply.refusal)

    def end(self, code: int, reason: str) -> None:
        """Close the socket, and wake tasks that wait for its client to read."""
        if self.closing is None and not self.gone:
            self.closing, self.gone = (code, reason), True
            self._released |= self._senders
            for sender in self._senders:
                sender.cancel()
            # A reader that calls `end` itself notices `gone` without being cancelled.
            if asyncio.current_task() is not self._reader:
                self._reader.cancel()

    def was_ended(self) -> bool:
        """Return whether `end` alone cancelled the reader."""
        return self.closing is not None and self._reader.uncancel() == 0

    async def close(self) -> None:
        """Send the close frame."""
        self.gone = True
        code, reason = self.closing or (1000, "")
        try:
            async with asyncio.timeout(_FAREWELL):
                short = reason.encode()[:_REASON].decode("utf-8", "ignore")
                await self._send({"type": "websocket.close", "code": code, "reason": short})
        except (OSError, TimeoutError):
            # The client does not read; the ASGI server closes the connection.
            pass

    async def _write(self, frame: str) -> None:
        task = _current()
        if not self._senders:
            self.blocked_since = time.monotonic()
        self._senders.add(task)
        try:
            await self._send({"type": "websocket.send", "text": frame})
        except OSError:
            self.gone = True
        except asyncio.CancelledError:
            if task not in self._released or task.uncancel() > 0:
                raise
        finally:
            self._released.discard(task)
            self._senders.discard(task)
            if not self._senders:
                self.blocked_since = None

    def _end_with(self, refusal: RequestError) -> None:
        if refusal.close is not None and (not self.has_session or refusal.code in _ENDS_SESSIONS):
            self.end(refusal.close, refusal.message)


def _current() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None
    return task


# `ReceiveAhead`: reads messages of a socket in advance, to notice that its client has left.
#
# A transport reports a disconnect only while someone is reading, and nobody takes messages while
# the client waits in the queue for a session.

# Messages buffered in advance. Clients send one request and wait for its reply.
_MOST = 16


class ReceiveAhead:
    """The messages of `receive` (ASGI), in order.

    `book` accounts for so many more bytes, or fewer; False above a limit. A message above the limit
    is kept without being accounted for, and nothing is read after it.
    """

    def __init__(
        self, receive: Callable[[], Awaitable[Message]], book: Callable[[int], bool]
    ) -> None:
        self._receive = receive
        self._book = book
        self._kept: deque[tuple[Message, int]] = deque()
        self._coming: asyncio.Task[Message] | None = None

    async def next(self) -> Message:
        """The next message."""
        if self._kept:
            message, booked = self._kept.popleft()
            self._book(-booked)
            return message
        if self._coming is None:
            return await self._receive()
        message = await self._coming
        self._coming = None
        return message

    async def disconnected(self) -> None:
        """Wait until the client disconnects; for ever if the buffer is full."""
        while len(self._kept) < _MOST:
            if self._coming is None:
                self._coming = asyncio.create_task(_as_coroutine(self._receive()))
            message = await asyncio.shield(self._coming)
            self._coming = None
            if message["type"] == "websocket.disconnect":
                self._kept.append((message, 0))
                return
            if not self._keep(message):
                break
        await asyncio.Event().wait()

    def close(self) -> None:
        """Drop buffered messages, and stop reading."""
        while self._kept:
            self._book(-self._kept.popleft()[1])
        if self._coming is not None:
            self._coming.cancel()

    def _keep(self, message: Message) -> bool:
        size = sys.getsizeof(message.get("text") or message.get("bytes"))
        booked = self._book(size)
        self._kept.append((message, size if booked else 0))
        return booked


async def _as_coroutine(awaited: Awaitable[Message]) -> Message:
    return await awaited


Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]

# Maximum seconds for which a socket that exceeds its request rate is not read.
_PENALTY = 1.0


class SessionSocketRoute:
    """The ASGI application behind `/ws`."""

    def __init__(self, manager: SessionManager) -> None:
        self._manager = manager

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        named = SUBPROTOCOL in scope.get("subprotocols", ())
        if await opened(receive, send, SUBPROTOCOL if named else None):
            # A task of its own: messages then wake one coroutine, not all the layers of this one.
            await asyncio.create_task(self._serve(scope, receive, send, named))

    async def _serve(self, scope: Scope, receive: Receive, send: Send, named: bool) -> None:
        codec = FrameCodec(self._manager.action, named)
        await SessionSocket(
            self._manager, scope, receive, send, codec, _named_session(scope)
        ).serve()


async def opened(receive: Receive, send: Send, subprotocol: str | None = None) -> bool:
    """Accept a WebSocket; False if its client has left."""
    if (await receive())["type"] != "websocket.connect":
        return False
    await send({"type": "websocket.accept", "subprotocol": subprotocol})
    return True


class SocketCodec(Protocol):
    """Parses and serializes the frames of a socket."""

    @property
    def is_v1(self) -> bool:
        """True if the client opens or resumes its session by a frame."""

    def read(self, frame: str | bytes | None) -> ClientRequest | InvalidFrame | None:
        """Parse a frame; None if it needs no action."""

    def write(self, id: str | None, reply: ServerReply) -> str | None:
        """The frame of a reply; None if the client gets none."""


class SessionSocket:
    """One WebSocket, and the session that it controls.

    `token`: of an existing session, which the socket joins while it is open, as in OpenEnv; None:
    the socket opens a session, or its frames name one.
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
        self._disconnected = False  # without a close frame or request
        self._closed = False  # by the client's request "close"

    async def serve(self) -> None:
        """Serve frames until one side closes the socket."""
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
                # Not read for a while: errors cost time, too.
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
        """Perform a request, or submit it to the session; False after the last one."""
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
        """Attach to the session that `opening` returns; False after sending its error."""
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
        """Open a session. A client that disconnects leaves the queue."""
        opening = asyncio.create_task(self._manager.open(self._tenant))
        try:
            await asyncio.sleep(0)  # enough if there is no queue
            if not opening.done():
                await self._wait_while_connected(opening)
            return await asyncio.shield(opening)
        except BaseException:
            opening.add_done_callback(_end_if_made)
            opening.cancel()
            raise

    async def _wait_while_connected(self, opening: asyncio.Task[ServerSession]) -> None:
        """Wait for `opening`; OSError if the client disconnects first."""
        leaving = asyncio.create_task(self._messages.disconnected())
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
        """Detach from the session, which then waits to be resumed, or ends."""
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
        "type", "open or resume must come first" if first else "the socket has a session already"
    )


def _end_if_made(opening: asyncio.Task[ServerSession]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().end()
