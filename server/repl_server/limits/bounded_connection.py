"""`BoundedConnection`: a connection among others, whose client must read."""

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
    """What the connections of one server share."""

    settings: Settings
    connections: ConnectionLimits
    inbound: ReceiveBuffers


class BoundedConnection(asyncio.Protocol):
    """What both protocols have in common: a place among the others, and a client that reads.

    A client is given `Settings.send_s` to take what fills the buffers, and more as long as it
    takes it at a rate that is worth waiting for.
    """

    context: ClassVar[ConnectionContext]
    transport: asyncio.Transport
    loop: asyncio.AbstractEventLoop
    lease: ConnectionLease | None = None
    peer: str = ""
    _unread: int = 0
    _reader_due: asyncio.TimerHandle | None = None

    def on_connect(self) -> None:
        """Say who is at the other end, and let the kernel give up on it if it does not answer."""
        name = self.transport.get_extra_info("peername")
        self.peer = str(name[0]) if isinstance(name, tuple) else ""
        connection = self.transport.get_extra_info("socket")
        if connection is not None and connection.family in (socket.AF_INET, socket.AF_INET6):
            # Data that nobody acknowledges, and a window that stays closed; Linux.
            option = getattr(socket, "TCP_USER_TIMEOUT", None)
            if option is not None:
                milliseconds = int(self.context.settings.send_s * 1000)
                connection.setsockopt(socket.IPPROTO_TCP, option, milliseconds)

    def on_disconnect(self) -> None:
        """The connection is gone."""
        self._stop_watching()
        if self.lease is not None:
            self.lease.release()

    def abort(self, reason: str) -> None:
        """Give up on the connection, and on what was to be sent."""
        self.context.connections.record_closed(self.peer, reason)
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
        self._reader_due = self.loop.call_later(self.context.settings.send_s, self._look_at_reader)

    def _look_at_reader(self) -> None:
        taken = self._unread - self.transport.get_write_buffer_size()
        if taken < MIN_RATE * self.context.settings.send_s:
            self.abort("unread")
        else:
            self._watch_reader()

    def _stop_watching(self) -> None:
        if self._reader_due is not None:
            self._reader_due.cancel()
            self._reader_due = None
