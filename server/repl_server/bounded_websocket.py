"""`BoundedWebSocket`: uvicorn's WebSockets, with limits on what is half received."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import CloseCode, Frame

from repl_env.refusals import CODES, TRY_AGAIN

from .addresses import subscriber
from .bounded import Bounded
from .bounded_http import BoundedHTTP
from .buckets import Bucket
from .guarding import LINGER_S
from .inbound import patience
from .messages import Messages
from .paced_frames import PacedFrames
from .socket_outlet import TEXTS

# Of a connection's messages, held without being booked: most are smaller, and cost nothing so.
UNBOOKED = 64 * 1024
# What a fragment of a message takes beside its bytes: an object, and its place in a list.
_FRAGMENT = 128
# Pings and pongs of a client, at once and in a second. Libraries send one in twenty seconds.
_CONTROL_BURST = 100
_CONTROL_RATE = 10
_NO_HANDSHAKE = STATUS_LINE[400] + b"content-length: 0\r\nconnection: close\r\n\r\n"


class BoundedWebSocket(Bounded, WebSocketsSansIOProtocol):
    """uvicorn's WebSockets, with what is half received bounded in memory and in time.

    A message counts until the application comes for the next one.
    """

    conn: PacedFrames
    queue: Messages  # type: ignore[assignment]  # what uvicorn calls of a queue, it has

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.conn = PacedFrames(max_size=self.config.ws_max_size, logger=self.logger)
        self.queue = Messages(self.loop)
        self._heard = False
        self._control = Bucket(_CONTROL_BURST, _CONTROL_RATE, self.loop.time)
        self._failed = self._rests = False
        self._take: Callable[[str], bool] | None = None  # see `TEXTS`
        self._delivered = 0
        self._fragments = self._counted = 0
        self._booked = 0
        self._begun = 0.0
        self._client: object = None
        self._message_due: asyncio.TimerHandle | None = None

    async def run_asgi(self) -> None:
        """Serve the application."""
        app = self.app
        self.scope.setdefault("extensions", {})[TEXTS] = {
            "write": self._write,
            "take_by": self._take_by,
        }

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
        if self._booked == 0 and self._message_due is None and self._is_expected():
            text = self.conn.text_of(data)
            if text is not None:
                # As nearly always: a small message, whole, and somebody waits for it.
                if self._take is not None and self._take(text):
                    return
                self._delivered += len(data)
                self.queue.put_nowait({"type": "websocket.receive", "text": text})
                return
        super().data_received(data)
        if not self.handshake_initiated:
            self._refuse_handshake()
            return
        if self.conn.resting:
            self._rest()
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
        if not self.close_sent:  # else nobody gets it
            frames = self.frames
            self._delivered += len(frames[0]) if len(frames) == 1 else sum(map(len, frames))
        self._fragments = self._counted = 0
        expected = self._is_expected()
        if expected:
            # It is taken at once: to stop reading for that and to go on would be two system calls.
            self.read_paused = True
        super().send_receive_event_to_app()
        if expected:
            self.read_paused = False

    def _is_expected(self) -> bool:
        """Whether the application waits for a message, and so would take it at once."""
        return self.queue.expected and not (self.read_paused or self.close_sent)

    def _take_by(self, take: Callable[[str], bool] | None) -> None:
        self._take = take

    def _write(self, text: str) -> bool:
        """Send a text at once, if nothing is in its way; whether that was done."""
        if not self.writable.is_set() or self.disconnected or self.close_sent:
            return False
        frame = self.conn.frame_of(text)
        if frame is None:
            return False
        self.transport.write(frame)
        return True

    def handle_ping(self) -> None:
        """A ping, whose answer is on its way."""
        if self._may_control():
            super().handle_ping()

    def handle_pong(self, event: Frame) -> None:
        """A pong."""
        if self._may_control():
            super().handle_pong(event)

    async def receive(self) -> Any:
        """The next message; the ones before it are done with."""
        queue, waiting = self.queue, self.queue.waiting
        if not waiting:
            self._delivered = 0
            if self._booked:
                self._book()
        while not waiting:
            await queue.coming()
        message = queue.take()
        if self.read_paused and not waiting:
            self.read_paused = False
            self.transport.resume_reading()
        if self.conn.resting:
            self._rest()  # its reading may have been resumed
        return message

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

    def _refuse_handshake(self) -> None:
        """Say what the parser has against the request, which uvicorn keeps to itself."""
        self._failed = True
        self.transport.write(b"".join(self.conn.data_to_send()) or _NO_HANDSHAKE)
        self.transport.close()

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
        """What the message that is not whole takes, and what was not looked at."""
        # Each fragment is counted once: there may be a million, and one more with each packet.
        new = self.frames[self._counted :]
        self._counted += len(new)
        self._fragments += sum(map(len, new)) + _FRAGMENT * len(new)
        return len(self.conn.reader.buffer) + self._fragments

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
        self._delivered = self._fragments = self._counted = 0
        self.frames = []
        self.conn.reader.discard()
        if self._booked:
            self.shared.inbound.change(self._who(), -self._booked)
            self._booked = 0

    def _may_control(self) -> bool:
        """Whether one more ping or pong is heeded; nobody would see a flood of them."""
        if self._failed:
            return False
        if self._control.take(1):
            self._fail("pings", CloseCode.POLICY_VIOLATION, "too many pings")
            return False
        return True

    def _rest(self) -> None:
        """Let others have their turn before the rest of what came is read."""
        if not self.transport.is_closing():
            self.transport.pause_reading()
            if not self._rests:
                self._rests = True
                self.loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        self._rests = False
        if self._failed or self.read_paused or self.transport.is_closing():
            return
        if self.conn.resting:
            self.data_received(b"")
        if not self.conn.resting and not self.read_paused:
            self.transport.resume_reading()
