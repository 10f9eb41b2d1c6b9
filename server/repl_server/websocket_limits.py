"""`BoundedWebSocket`: uvicorn's WebSocket protocol with limits on partly received messages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Hashable, Sequence
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import CloseCode, Frame
from websockets.server import ServerProtocol
from websockets.streams import StreamReader

from repl_env.client.protocol import CODES, TRY_AGAIN

from .connections import LINGER_S, BoundedConnection, ReceiveBuffers, receive_timeout
from .http_limits import BoundedHTTP
from .quotas import TokenBucket
from .tenants import client_network

# `PacedFrames`: the WebSocket parser, a bounded number of frames at a time.
#
# An empty frame has six bytes and takes 25 µs to parse, so one read of 256 KiB could block the
# event loop for a second.

# Frames parsed per turn of the event loop: half a millisecond, and more than clients send at once.
AT_ONCE = 16


class _PacedReader(StreamReader):
    """A stream that pauses the parser after AT_ONCE frames and keeps the rest buffered."""

    remaining = AT_ONCE

    def at_eof(self) -> Generator[None, None, bool]:
        # The parser calls this before each frame.
        while not self.remaining:
            yield
        self.remaining -= 1
        return (yield from super().at_eof())


class PacedFrames(ServerProtocol):
    """Parses AT_ONCE frames of received data, and further ones at each `receive_data`."""

    def parse(self) -> Generator[None]:
        """Start the parser; the base class advances it."""
        self._stream = self.reader = _PacedReader()
        yield from super().parse()

    @property
    def paused(self) -> bool:
        """True if received data is waiting to be parsed."""
        return not self._stream.remaining and bool(self._stream.buffer)

    def receive_data(self, data: bytes | bytearray) -> None:
        """Add data, possibly none, and parse the next frames."""
        self._stream.remaining = AT_ONCE
        super().receive_data(data)


# `MessageBuffer`: accounts for the received messages of one socket, and times partial ones.

# Bytes that are not accounted for: most messages are smaller, and cost no bookkeeping.
UNBOOKED = 64 * 1024
# Memory of a fragment beside its bytes: an object, and its slot in a list.
_FRAGMENT = 128


class MessageBuffer:
    """Complete messages of one socket that the application has not consumed, and the partial one.

    Args:
        inbound: accounts for the bytes, under the client that `client` returns.
        seconds: time limit of a message, beside the time for its bytes (`receive_timeout`).
        paused: whether reading is paused until the application takes a message.
        late: called when a message exceeds its time limit.
    """

    def __init__(
        self,
        inbound: ReceiveBuffers,
        seconds: float,
        *,
        client: Callable[[], Hashable],
        paused: Callable[[], bool],
        late: Callable[[], None],
    ) -> None:
        self._inbound, self._seconds = inbound, seconds
        self._find_client, self._paused, self._late = client, paused, late
        self._loop = asyncio.get_running_loop()
        self._complete = self._partial = 0
        self._counted = self._fragments = 0
        self._reserved = 0
        self._client: Hashable | None = None
        self._begun = 0.0
        self._due: asyncio.TimerHandle | None = None

    def complete(self, count: int) -> None:
        """A message of `count` bytes is complete and queued for the application."""
        self._complete += count
        self._counted = self._fragments = 0

    def consumed(self) -> None:
        """The application has consumed all complete messages."""
        self._complete = 0
        if self._reserved:
            self._reserve()

    def update(self, buffered: int, fragments: Sequence[bytes]) -> bool:
        """Account for the partial message; False if it exceeds a limit."""
        # Counts each fragment once: there may be a million, and one more with each packet.
        new = fragments[self._counted :]
        self._counted += len(new)
        self._fragments += sum(map(len, new)) + _FRAGMENT * len(new)
        self._partial = buffered + self._fragments
        if not self._partial:
            self._stop_waiting()
        elif self._due is None:
            self._begun = self._loop.time()
            self._wait(self._seconds)
        return self._reserve()

    def clear(self) -> None:
        """Release everything."""
        self._stop_waiting()
        self._complete = self._partial = self._counted = self._fragments = 0
        self._reserve()

    def _reserve(self) -> bool:
        buffered = self._complete + self._partial
        due = buffered if buffered > UNBOOKED else 0
        if due == self._reserved:
            return True
        if self._client is None:
            self._client = self._find_client()
        if not self._inbound.adjust(self._client, due - self._reserved):
            return False
        self._reserved = due
        return True

    def _wait(self, seconds: float) -> None:
        self._due = self._loop.call_later(seconds, self._check_clock)

    def _stop_waiting(self) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None

    def _check_clock(self) -> None:
        now = self._loop.time()
        if self._paused():
            self._begun = now
        left = self._begun + receive_timeout(self._seconds, self._partial) - now
        if left > 0:
            self._wait(left)
        else:
            self._due = None
            self._late()


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
                self.context.turns.wait(self._resume_turn)

    def _resume_turn(self) -> None:
        self._paused_turn = False
        if self._failed or self.read_paused or self.transport.is_closing():
            return
        if self.conn.paused:
            self.data_received(b"")
        if not self.conn.paused and not self.read_paused:
            self.transport.resume_reading()
