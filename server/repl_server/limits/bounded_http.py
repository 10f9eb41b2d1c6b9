"""`BoundedHTTP`: uvicorn's HTTP, with headers that must end, in bytes and in time."""

from __future__ import annotations

import asyncio
from typing import cast

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from ..protocol.request_error import RequestError, http_response
from .bounded_connection import BoundedConnection
from .connection_limits import ConnectionLease

# Of one request. Servers allow between 8 and 64 KiB; a piece more may have come with the last.
MAX_HEADER_BYTES = 64 * 1024


class BoundedHTTP(BoundedConnection, HttpToolsProtocol):
    """uvicorn's HTTP, with headers that must end, in bytes and in time."""

    _headers_due: asyncio.TimerHandle | None = None
    _header_bytes = 0
    _progressed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A connection, if there may be one more."""
        self.transport = cast(asyncio.Transport, transport)
        self.on_connect()
        try:
            self.lease = self.context.connections.admit(self.peer)
        except RequestError as refusal:
            self._answer(refusal)
            return
        super().connection_made(self.transport)
        self._expect_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone."""
        self._stop_expecting()
        if self.flow is not None:  # else it was never let in
            super().connection_lost(exc)
        self.on_disconnect()

    def data_received(self, data: bytes) -> None:
        """More of a request."""
        if self._headers_due is None and (self.cycle is None or self.cycle.response_complete):
            # Whatever it is, it is no request until one has come.
            self._expect_headers()
        self._progressed = False
        super().data_received(data)
        if not self._progressed:
            # Headers, or lines behind a body.
            self._header_bytes += len(data)
            if self._header_bytes > MAX_HEADER_BYTES:
                self._give_up("headers", RequestError("TOO_LARGE", "The headers are too long."))

    def on_message_begin(self) -> None:
        """A request, or the next one behind it."""
        super().on_message_begin()
        if self._headers_due is None:
            self._expect_headers()

    def on_header(self, name: bytes, value: bytes) -> None:
        """One of its headers. What stands behind a body is none: nobody looked at it before."""
        if self._headers_due is not None:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Its headers are whole."""
        self._progressed = True
        self._stop_expecting()
        if self.lease is not None:
            self.lease.request_received()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Some of its body."""
        self._progressed = True
        self._header_bytes = 0  # heads of chunks are many, and are not kept
        super().on_body(body)

    def on_message_complete(self) -> None:
        """It is whole."""
        self._progressed = True
        super().on_message_complete()

    def handle_websocket_upgrade(self) -> None:
        """It is the last one in HTTP, unless an answer would follow in the middle of the socket."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.abort("early_upgrade")
            return
        super().handle_websocket_upgrade()

    def transfer_lease(self) -> ConnectionLease | None:
        """The place of this connection, for the WebSocket that it becomes."""
        lease, self.lease = self.lease, None
        return lease

    def _expect_headers(self) -> None:
        self._header_bytes = 0
        self._headers_due = self.loop.call_later(self.context.settings.body_s, self._no_headers)

    def _stop_expecting(self) -> None:
        if self._headers_due is not None:
            self._headers_due.cancel()
            self._headers_due = None

    def _no_headers(self) -> None:
        self._headers_due = None
        self._give_up("slow_headers", RequestError("TOO_SLOW", "No request came in time."))

    def _give_up(self, reason: str, refusal: RequestError) -> None:
        self._stop_expecting()
        if self.cycle is not None and not self.cycle.response_complete:
            # The answer to an earlier request is under way.
            self.abort(reason)
            return
        self.context.connections.record_closed(self.peer, reason)
        self._answer(refusal)

    def _answer(self, refusal: RequestError) -> None:
        headers, text = http_response(refusal)
        lines = [b"%s: %s\r\n" % header for header in [*headers, (b"connection", b"close")]]
        self.transport.write(b"".join([STATUS_LINE[refusal.status], *lines, b"\r\n", text]))
        self.transport.close()
