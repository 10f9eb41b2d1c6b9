"""`BoundedHTTP`: uvicorn's HTTP protocol with limits on the size and duration of headers."""

from __future__ import annotations

import asyncio
from typing import cast

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from ..protocol.request_error import RequestError, http_response
from .bounded_connection import BoundedConnection
from .connection_limits import ConnectionLease

# Other servers allow 8 to 64 KiB. One read more may have arrived with the last bytes.
MAX_HEADER_BYTES = 64 * 1024


class BoundedHTTP(BoundedConnection, HttpToolsProtocol):
    """uvicorn's HTTP protocol with limits on the size and duration of headers."""

    _headers_due: asyncio.TimerHandle | None = None
    _header_bytes = 0
    _progressed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Admit the connection, or answer with the error and close it."""
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
        """Release the lease."""
        self._stop_expecting()
        if self.flow is not None:  # None: the connection was refused
            super().connection_lost(exc)
        self.on_disconnect()

    def data_received(self, data: bytes) -> None:
        """Parse data, and count the bytes that belong to headers."""
        if self._headers_due is None and (self.cycle is None or self.cycle.response_complete):
            # Between requests, any data must become a request in time.
            self._expect_headers()
        self._progressed = False
        super().data_received(data)
        if not self._progressed:
            # Headers, or trailers after a chunked body.
            self._header_bytes += len(data)
            if self._header_bytes > MAX_HEADER_BYTES:
                self._give_up("headers", RequestError("TOO_LARGE", "the headers are too long"))

    def on_message_begin(self) -> None:
        """Time the headers of a pipelined request too."""
        super().on_message_begin()
        if self._headers_due is None:
            self._expect_headers()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Drop trailers: they were not part of the headers that the guard checked."""
        if self._headers_due is not None:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Stop to time the headers."""
        self._progressed = True
        self._stop_expecting()
        if self.lease is not None:
            self.lease.request_received()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Count body data as progress."""
        self._progressed = True
        self._header_bytes = 0  # chunk headers may be many, and are not kept
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Count the end of a request as progress."""
        self._progressed = True
        super().on_message_complete()

    def handle_websocket_upgrade(self) -> None:
        """Refuse an upgrade while the response to an earlier pipelined request is in progress."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.abort("early_upgrade")
            return
        super().handle_websocket_upgrade()

    def transfer_lease(self) -> ConnectionLease | None:
        """Give up the lease, for the WebSocket that this connection becomes."""
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
        self._give_up("slow_headers", RequestError("TOO_SLOW", "no request arrived in time"))

    def _give_up(self, reason: str, refusal: RequestError) -> None:
        self._stop_expecting()
        if self.cycle is not None and not self.cycle.response_complete:
            # A response to an earlier request is in progress.
            self.abort(reason)
            return
        self.context.connections.record_closed(self.peer, reason)
        self._answer(refusal)

    def _answer(self, refusal: RequestError) -> None:
        headers, text = http_response(refusal)
        lines = [b"%s: %s\r\n" % header for header in [*headers, (b"connection", b"close")]]
        self.transport.write(b"".join([STATUS_LINE[refusal.status], *lines, b"\r\n", text]))
        self.transport.close()
