"""`BoundedWebSocket`: uvicorn's WebSocket protocol with limits on partly received messages."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import CloseCode, Frame

from repl_env.client.protocol.refusal_codes import CODES, TRY_AGAIN

from ..quotas.token_bucket import TokenBucket
from ..tenants.client_address import client_network
from .bounded_connection import BoundedConnection
from .bounded_http import BoundedHTTP
from .frame_pacing import PacedFrames
from .message_buffer import MessageBuffer
from .receive_buffers import LINGER_S

# Pings and pongs of one client: burst, and rate per second. Libraries send one every 20 seconds.
_CONTROL_BURST = 100
_CONTROL_RATE = 10
_NO_HANDSHAKE = STATUS_LINE[400] + b"content-length: 0\r\nconnection: close\r\n\r\n"


class BoundedWebSocket(BoundedConnection, WebSocketsSansIOProtocol):
    """uvicorn's WebSocket protocol with partly received messages bounded in memory and time."""

    conn: PacedFrames

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.conn = PacedFrames(max_size=self.config.ws_max_size, logger=self.logger)
        self._buffer = MessageBuffer(
            self.context.inbound,
            self.context.settings.body_s,
            client=self._client,
            paused=lambda: self.read_paused,
            late=self._is_late,
        )
        self._received = False
        self._control = TokenBucket(_CONTROL_BURST, _CONTROL_RATE, self.loop.time)
        self._failed = self._paused_turn = False

    async def run_asgi(self) -> None:
        """Serve the application."""
        app = self.app

        async def answered(*asgi: Any) -> None:
            await app(*asgi)
            if self.initial_response is not None:
                # The application answered over HTTP; uvicorn would report a missing handshake.
                self.handshake_complete = True

        self.app = answered
        await super().run_asgi()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take over the lease of the HTTP connection."""
        super().connection_made(transport)
        self.on_connect()
        before = self.transport.get_protocol()
        if isinstance(before, BoundedHTTP):
            self.lease = before.transfer_lease()

    def connection_lost(self, exc: Exception | None) -> None:
        """Release the lease and the buffered data."""
        super().connection_lost(exc)
        self.on_disconnect()
        self._discard()

    def data_received(self, data: bytes) -> None:
        """Parse data, unless the socket has failed."""
        if self._failed:
            return
        self._received = True
        super().data_received(data)
        if not self.handshake_initiated:
            self._refuse_handshake()
            return
        if self.conn.paused:
            self._pause_turn()
        if not self._failed and not self._buffer.update(len(self.conn.reader.buffer), self.frames):
            self._fail("inbound", TRY_AGAIN, "the server is receiving too much; try again")

    def send_receive_event_to_app(self) -> None:
        """Pass a complete message to the application."""
        # After a close, the application gets no message.
        self._buffer.complete(0 if self.close_sent else sum(map(len, self.frames)))
        super().send_receive_event_to_app()

    async def receive(self) -> Any:
        """Return the next message; releases the memory of the previous ones."""
        if self.queue.empty():
            self._buffer.consumed()
        message = await super().receive()
        if self.conn.paused:
            self._pause_turn()  # uvicorn may have resumed reading
        return message

    def handle_ping(self) -> None:
        """Answer a ping."""
        if self._allow_control():
            super().handle_ping()

    def handle_pong(self, event: Frame) -> None:
        """Take a pong."""
        if self._allow_control():
            super().handle_pong(event)

    def send_keepalive_ping(self) -> None:
        """Send a ping; any data will count as a sign of life."""
        self._received = False
        super().send_keepalive_ping()

    def keepalive_timeout(self) -> None:
        """Close the connection, unless the pong may be queued behind data in transit."""
        if self._received or self.read_paused:
            self.pong_timer = None
            self.pending_ping_payload = None
            self.schedule_ping()
            return
        self.context.connections.record_closed(self.peer, "no_pong")
        super().keepalive_timeout()

    def handle_parser_exception(self) -> None:
        """Send the close code, and read on for LINGER_S: a TCP reset would discard the code."""
        close = self.conn.close_sent
        code, reason = (1006, "") if close is None else (close.code, close.reason)
        if code == CloseCode.MESSAGE_TOO_BIG:
            self.context.connections.record_closed(self.peer, "too_large")
        self.queue.put_nowait({"type": "websocket.disconnect", "code": code, "reason": reason})
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.close_sent = self._failed = True
        self.stop_keepalive()
        self._discard()
        if not self.transport.is_closing():
            self.transport.resume_reading()
        self.close_timer = self.loop.call_later(LINGER_S, self.transport.close)

    def _refuse_handshake(self) -> None:
        """Send the parser's error response, which uvicorn does not send."""
        self._failed = True
        self.transport.write(b"".join(self.conn.data_to_send()) or _NO_HANDSHAKE)
        self.transport.close()

    def _fail(self, reason: str, code: int, text: str) -> None:
        self.context.connections.record_closed(self.peer, reason)
        self.conn.fail(code, text)
        self.handle_parser_exception()

    def _client(self) -> object:
        """The client that bytes are accounted to: the tenant, once the guard has found it."""
        state = self.scope.get("state", {}) if self.handshake_initiated else {}
        return state.get("tenant") or client_network(self.peer)

    def _is_late(self) -> None:
        code = CODES["TOO_SLOW"].close or 0
        self._fail("slow_message", code, "the message did not arrive in time")

    def _discard(self) -> None:
        self.frames = []
        self.conn.reader.discard()
        self._buffer.clear()

    def _allow_control(self) -> bool:
        """True if one more ping or pong is processed; a flood closes the socket."""
        if self._failed:
            return False
        if self._control.take(1):
            self._fail("pings", CloseCode.POLICY_VIOLATION, "too many pings")
            return False
        return True

    def _pause_turn(self) -> None:
        """Let the event loop serve others before the rest of the received frames is parsed."""
        if not self.transport.is_closing():
            self.transport.pause_reading()
            if not self._paused_turn:
                self._paused_turn = True
                self.loop.call_soon(self._resume_turn)

    def _resume_turn(self) -> None:
        self._paused_turn = False
        if self._failed or self.read_paused or self.transport.is_closing():
            return
        if self.conn.paused:
            self.data_received(b"")
        if not self.conn.paused and not self.read_paused:
            self.transport.resume_reading()
