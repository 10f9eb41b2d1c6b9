"""Connections with limits: uvicorn's protocols for HTTP and WebSockets.

What an application never sees is bounded here: connections that send nothing, headers that do not
end, messages that stay half, clients that do not read, peers that are gone. The rest of a server's
life is uvicorn's.
"""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import CloseCode

from repl_env.refusals import CODES, TRY_AGAIN

from .addresses import subscriber
from .connections import Connections, Ticket
from .guarding import LINGER_S, answer
from .inbound import MIN_RATE, Inbound, patience
from .refusal import Refusal
from .settings import Settings

# Of one request. Servers allow between 8 and 64 KiB; a piece more may have come with the last.
MAX_HEADER_BYTES = 64 * 1024
# Of a connection's messages, held without being booked: most are smaller, and cost nothing so.
UNBOOKED = 64 * 1024
# What a fragment of a message takes beside its bytes: an object, and its place in a list.
_FRAGMENT = 128
# New connections that the kernel keeps until they are looked at. A client that finds no room waits
# for a second; all are taken in one turn of the loop, at 0.2 ms each.
_BACKLOG = 1024


@dataclass(frozen=True, slots=True)
class Shared:
    """What the connections of one server share."""

    settings: Settings
    connections: Connections
    inbound: Inbound


def config(app: ASGIApp, shared: Shared, **more: Any) -> uvicorn.Config:
    """How uvicorn serves `app` with these limits; `more` are arguments of `uvicorn.Config`."""
    settings = shared.settings
    http = type("HTTP", (BoundedHTTP,), {"shared": shared})
    ws = type("WebSocket", (BoundedWebSocket,), {"shared": shared})
    arguments: dict[str, Any] = {
        "host": settings.host,
        "port": settings.port,
        "http": http,
        "ws": ws,
        "ws_max_size": settings.message_bytes,  # refused when announced, by its header
        "ws_ping_interval": settings.ping_s,
        "ws_ping_timeout": settings.ping_s,
        # A message of a few kilobytes can unfold to the limit, at our cost.
        "ws_per_message_deflate": False,
        "backlog": _BACKLOG,
        # Whose word is believed is `Settings.trusted_proxies`; uvicorn believes this machine.
        "proxy_headers": False,
        "server_header": False,
        # Requests are told by the journal, without their queries.
        "access_log": False,
        "log_config": None,
        "log_level": "warning",
    }
    return uvicorn.Config(app, **{**arguments, **more})


class _Bounded(asyncio.Protocol):
    """What both protocols have in common: a place among the others, and a client that reads.

    A client is given `Settings.send_s` to take what fills the buffers, and more as long as it
    takes it at a rate that is worth waiting for.
    """

    shared: ClassVar[Shared]
    transport: asyncio.Transport
    loop: asyncio.AbstractEventLoop
    ticket: Ticket | None = None
    peer: str = ""
    _unread: int = 0
    _reader_due: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Say who is at the other end, and let the kernel give up on it if it does not answer."""
        name = self.transport.get_extra_info("peername")
        self.peer = str(name[0]) if isinstance(name, tuple) else ""
        connection = self.transport.get_extra_info("socket")
        if connection is not None and connection.family in (socket.AF_INET, socket.AF_INET6):
            # Data that nobody acknowledges, and a window that stays closed; Linux.
            option = getattr(socket, "TCP_USER_TIMEOUT", None)
            if option is not None:
                milliseconds = int(self.shared.settings.send_s * 1000)
                connection.setsockopt(socket.IPPROTO_TCP, option, milliseconds)

    def finish(self) -> None:
        """The connection is gone."""
        self._stop_watching()
        if self.ticket is not None:
            self.ticket.gone()

    def end(self, reason: str) -> None:
        """Give up on the connection, and on what was to be sent."""
        self.shared.connections.ended(self.peer, reason)
        self.transport.abort()

    def pause_writing(self) -> None:
        """The buffers are full."""
        super().pause_writing()
        self._watch_reader()

    def resume_writing(self) -> None:
        """The client took what was in them."""
        super().resume_writing()
        self._stop_watching()

    def _watch_reader(self) -> None:
        self._unread = self.transport.get_write_buffer_size()
        self._reader_due = self.loop.call_later(self.shared.settings.send_s, self._look_at_reader)

    def _look_at_reader(self) -> None:
        taken = self._unread - self.transport.get_write_buffer_size()
        if taken < MIN_RATE * self.shared.settings.send_s:
            self.end("unread")
        else:
            self._watch_reader()

    def _stop_watching(self) -> None:
        if self._reader_due is not None:
            self._reader_due.cancel()
            self._reader_due = None


class BoundedHTTP(_Bounded, HttpToolsProtocol):
    """uvicorn's HTTP, with headers that must end, in bytes and in time."""

    _headers_due: asyncio.TimerHandle | None = None
    _header_bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A connection, if there may be one more."""
        self.transport = cast(asyncio.Transport, transport)
        self.begin()
        try:
            self.ticket = self.shared.connections.admit(self.peer)
        except Refusal as refusal:
            self._answer(refusal)
            return
        super().connection_made(self.transport)
        self._expect_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone."""
        self._stop_expecting()
        if self.flow is not None:  # else it was never let in
            super().connection_lost(exc)
        self.finish()

    def data_received(self, data: bytes) -> None:
        """More of a request."""
        expected = self._headers_due is not None
        if not expected and (self.cycle is None or self.cycle.response_complete):
            # Whatever it is, it is no request until one has come.
            self._expect_headers()
        super().data_received(data)
        if expected and self._headers_due is not None:
            self._header_bytes += len(data)
            if self._header_bytes > MAX_HEADER_BYTES:
                self._give_up("headers", Refusal("TOO_LARGE", "The headers are too long."))

    def on_message_begin(self) -> None:
        """A request, or the next one behind it."""
        super().on_message_begin()
        if self._headers_due is None:
            self._expect_headers()

    def on_headers_complete(self) -> None:
        """Its headers are whole."""
        self._stop_expecting()
        if self.ticket is not None:
            self.ticket.request_came()
        super().on_headers_complete()

    def give_ticket(self) -> Ticket | None:
        """The place of this connection, for the WebSocket that it becomes."""
        ticket, self.ticket = self.ticket, None
        return ticket

    def _expect_headers(self) -> None:
        self._header_bytes = 0
        self._headers_due = self.loop.call_later(self.shared.settings.body_s, self._no_headers)

    def _stop_expecting(self) -> None:
        if self._headers_due is not None:
            self._headers_due.cancel()
            self._headers_due = None

    def _no_headers(self) -> None:
        self._headers_due = None
        self._give_up("slow_headers", Refusal("TOO_SLOW", "No request came in time."))

    def _give_up(self, reason: str, refusal: Refusal) -> None:
        self._stop_expecting()
        if self.cycle is not None and not self.cycle.response_complete:
            # The answer to an earlier request is under way.
            self.end(reason)
            return
        self.shared.connections.ended(self.peer, reason)
        self._answer(refusal)

    def _answer(self, refusal: Refusal) -> None:
        headers, text = answer(refusal)
        lines = [b"%s: %s\r\n" % header for header in [*headers, (b"connection", b"close")]]
        self.transport.write(b"".join([STATUS_LINE[refusal.status], *lines, b"\r\n", text]))
        self.transport.close()


class BoundedWebSocket(_Bounded, WebSocketsSansIOProtocol):
    """uvicorn's WebSockets, with what is half received bounded in memory and in time.

    A message counts until the application comes for the next one.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._heard = False
        self._failed = False
        self._delivered = 0
        self._booked = 0
        self._begun = 0.0
        self._client: object = None
        self._message_due: asyncio.TimerHandle | None = None

    async def run_asgi(self) -> None:
        """Serve the application."""
        app = self.app

        async def answered(*asgi: Any) -> None:
            await app(*asgi)
            if self.initial_response is not None:
                # An answer in HTTP; uvicorn takes it for a handshake that was forgotten.
                self.handshake_complete = True

        self.app = answered
        await super().run_asgi()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """An HTTP connection becomes this one."""
        super().connection_made(transport)
        self.begin()
        before = self.transport.get_protocol()
        if isinstance(before, BoundedHTTP):
            self.ticket = before.give_ticket()

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone."""
        super().connection_lost(exc)
        self.finish()
        self._forget()

    def data_received(self, data: bytes) -> None:
        """More of a message, or the rest of one that was given up."""
        if self._failed:
            return
        self._heard = True
        super().data_received(data)
        # Nearly always a small message came whole, and there is nothing to be done.
        if (
            self.conn.reader.buffer
            or self.frames
            or self._booked
            or self._message_due is not None
            or self._delivered > UNBOOKED
        ):
            self._book()

    def send_receive_event_to_app(self) -> None:
        """A message is whole."""
        frames = self.frames
        self._delivered += len(frames[0]) if len(frames) == 1 else sum(map(len, frames))
        super().send_receive_event_to_app()

    async def receive(self) -> Any:
        """The next message; the ones before it are done with."""
        if self.queue.empty():
            self._delivered = 0
            if self._booked:
                self._book()
        message = await super().receive()
        if not self.writable.is_set():
            # Its reading was resumed, and answers to what it reads would pile up.
            self._pause_reading()
        return message

    def pause_writing(self) -> None:
        """Whoever does not read is not read either: each ping of theirs would be an answer more."""
        super().pause_writing()
        self._pause_reading()

    def resume_writing(self) -> None:
        """They read again."""
        super().resume_writing()
        if not self.read_paused and not self.transport.is_closing():
            self.transport.resume_reading()

    def send_keepalive_ping(self) -> None:
        """Ask for a sign of life."""
        self._heard = False
        super().send_keepalive_ping()

    def keepalive_timeout(self) -> None:
        """There was no pong; but one may stand behind what is being sent, or what waits here."""
        if self._heard or self.read_paused:
            self.pong_timer = None
            self.pending_ping_payload = None
            self.schedule_ping()
            return
        self.shared.connections.ended(self.peer, "no_pong")
        super().keepalive_timeout()

    def handle_parser_exception(self) -> None:
        """Say why the connection ends, and read on for a moment: a reset would swallow that."""
        close = self.conn.close_sent
        code, reason = (1006, "") if close is None else (close.code, close.reason)
        if code == CloseCode.MESSAGE_TOO_BIG:
            self.shared.connections.ended(self.peer, "too_large")
        self.queue.put_nowait({"type": "websocket.disconnect", "code": code, "reason": reason})
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.close_sent = self._failed = True
        self.stop_keepalive()
        self._forget()
        if not self.transport.is_closing():
            self.transport.resume_reading()
        self.close_timer = self.loop.call_later(LINGER_S, self.transport.close)

    def _fail(self, reason: str, code: int, text: str) -> None:
        self.shared.connections.ended(self.peer, reason)
        self.conn.fail(code, text)
        self.handle_parser_exception()

    def _book(self) -> None:
        half = self._half()
        held = self._delivered + half
        due = held if held > UNBOOKED else 0
        if due != self._booked:
            if not self.shared.inbound.change(self._who(), due - self._booked):
                self._fail("inbound", TRY_AGAIN, "too much is being received; try again")
                return
            self._booked = due
        if not half:
            self._stop_waiting()
        elif self._message_due is None:
            self._begun = self.loop.time()
            self._wait(self.shared.settings.body_s)

    def _half(self) -> int:
        """What the message that is not whole takes."""
        fragments = sum(map(len, self.frames)) + _FRAGMENT * len(self.frames)
        return len(self.conn.reader.buffer) + fragments

    def _who(self) -> object:
        """Whom bytes are booked under: the owner, once the guard has said who that is."""
        if self._client is None:
            state = self.scope.get("state", {}) if self.handshake_initiated else {}
            self._client = state.get("owner") or subscriber(self.peer)
        return self._client

    def _wait(self, seconds: float) -> None:
        self._message_due = self.loop.call_later(seconds, self._look_at_message)

    def _stop_waiting(self) -> None:
        if self._message_due is not None:
            self._message_due.cancel()
            self._message_due = None

    def _look_at_message(self) -> None:
        now = self.loop.time()
        if self.read_paused:
            # It is not looked at before the application takes the one in front of it.
            self._begun = now
        left = self._begun + patience(self.shared.settings.body_s, self._half()) - now
        if left > 0:
            self._wait(left)
            return
        self._message_due = None
        self._fail("slow_message", CODES["TOO_SLOW"].close or 0, "the message did not come in time")

    def _forget(self) -> None:
        self._stop_waiting()
        self._delivered = 0
        self.frames = []
        self.conn.reader.discard()
        if self._booked:
            self.shared.inbound.change(self._who(), -self._booked)
            self._booked = 0

    def _pause_reading(self) -> None:
        if not self.transport.is_closing():
            self.transport.pause_reading()
