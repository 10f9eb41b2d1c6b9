"""`SocketWriter`: sends the replies of one WebSocket."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias

from ...protocol.json_codec import LARGE
from ...protocol.replies import ServerReply
from ...protocol.request_error import RequestError

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
