"""`BoundedConnection`: a counted connection that is closed if its client stops reading."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass
from typing import ClassVar

from ..settings import Settings
from .connection_limits import ConnectionLease, ConnectionLimits
from .receive_buffers import MIN_RATE, ReceiveBuffers


@dataclass(frozen=True, slots=True)
class ConnectionContext:
    """Shared by all connections of one server."""

    settings: Settings
    connections: ConnectionLimits
    inbound: ReceiveBuffers


class BoundedConnection(asyncio.Protocol):
    """The common base of both protocols: holds a connection lease and times slow readers.

    A client has `Settings.send_s` to read a full write buffer, and longer while it reads at
    MIN_RATE or faster.
    """

    context: ClassVar[ConnectionContext]
    transport: asyncio.Transport
    loop: asyncio.AbstractEventLoop
    lease: ConnectionLease | None = None
    peer: str = ""
    _unread: int = 0
    _reader_due: asyncio.TimerHandle | None = None

    def on_connect(self) -> None:
        """Record the peer, and set the kernel's time-out for unacknowledged data."""
        name = self.transport.get_extra_info("peername")
        self.peer = str(name[0]) if isinstance(name, tuple) else ""
        connection = self.transport.get_extra_info("socket")
        if connection is not None and connection.family in (socket.AF_INET, socket.AF_INET6):
            # Linux only. Covers unacknowledged data and a receive window that stays closed.
            option = getattr(socket, "TCP_USER_TIMEOUT", None)
            if option is not None:
                milliseconds = int(self.context.settings.send_s * 1000)
                connection.setsockopt(socket.IPPROTO_TCP, option, milliseconds)

    def on_disconnect(self) -> None:
        """Release the lease of a closed connection."""
        self._stop_watching()
        if self.lease is not None:
            self.lease.release()

    def abort(self, reason: str) -> None:
        """Close the connection without sending buffered data."""
        self.context.connections.record_closed(self.peer, reason)
        self.transport.abort()

    def pause_writing(self) -> None:
        """Start to time the reader: the write buffer is full."""
        super().pause_writing()
        self._watch_reader()

    def resume_writing(self) -> None:
        """Stop to time the reader."""
        super().resume_writing()
        self._stop_watching()

    def _watch_reader(self) -> None:
        self._unread = self.transport.get_write_buffer_size()
        self._reader_due = self.loop.call_later(self.context.settings.send_s, self._look_at_reader)

    def _look_at_reader(self) -> None:
        sent = self._unread - self.transport.get_write_buffer_size()
        if sent < MIN_RATE * self.context.settings.send_s:
            self.abort("unread")
        else:
            self._watch_reader()

    def _stop_watching(self) -> None:
        if self._reader_due is not None:
            self._reader_due.cancel()
            self._reader_due = None
