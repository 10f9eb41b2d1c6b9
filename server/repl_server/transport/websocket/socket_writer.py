"""`SocketWriter`: the sending side of one WebSocket."""

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

# Seconds that a closing socket may take to tell why.
_FAREWELL = 1.0
# Bytes of the reason in a closing frame (RFC 6455, section 5.5.1).
_REASON = 123
# To a session that is there, few refusals end its socket.
_ENDS_SESSIONS = frozenset({"DRAINING", "SESSION_ERROR"})


class SocketWriter:
    """An `Outlet` of frames, for the task that makes it, which reads the socket.

    Args:
        send: of ASGI.
        frame: the frame of a reply; None: there is none.
        refused: told of each refusal that is sent.

    Attributes:
        has_session: whether the socket has a session.
        closing: the code and the reason that it is to be closed with.
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
        """Send a reply, if anybody is there to read it."""
        if self.gone:
            return
        if reply.refusal is not None:
            self._refused(reply.refusal)
        frame = self._frame(id, reply)
        if frame is not None:
            if len(frame) >= LARGE:
                await asyncio.sleep(0)  # to make it took as long as it takes to send it
            await self._write(frame)
        if reply.refusal is not None:
            self._end_with(reply.refusal)

    def end(self, code: int, reason: str) -> None:
        """Close the socket; whoever waits for its client to read goes on."""
        if self.closing is None and not self.gone:
            self.closing, self.gone = (code, reason), True
            self._released |= self._senders
            for sender in self._senders:
                sender.cancel()
            # A reader that ends the socket itself sees that it is gone, and waits for nothing more.
            if asyncio.current_task() is not self._reader:
                self._reader.cancel()

    def was_ended(self) -> bool:
        """Whether the reader was cancelled by `end`, and by nobody else."""
        return self.closing is not None and self._reader.uncancel() == 0

    async def close(self) -> None:
        """Say why, and close."""
        self.gone = True
        code, reason = self.closing or (1000, "")
        try:
            async with asyncio.timeout(_FAREWELL):
                short = reason.encode()[:_REASON].decode("utf-8", "ignore")
                await self._send({"type": "websocket.close", "code": code, "reason": short})
        except (OSError, TimeoutError):
            # The client does not read; the server closes the connection under it.
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
