"""`BoundedHTTP`: uvicorn's HTTP protocol with limits on the size and duration of headers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from .connections import BoundedConnection, ConnectionLease
from .tenants import RequestError, http_response

# Other servers allow 8 to 64 KiB. One read more may have arrived with the last bytes.
MAX_HEADER_BYTES = 64 * 1024
# Header fields of one request. A browser sends some 20; Apache allows 100.
MAX_HEADER_FIELDS = 256
# Bytes that are parsed at once, of headers and of bodies without a length: the smallest requests,
# header fields and chunks have 18, 5 and 6 bytes.
_SLICE = 512
# Chunks of a body that may be small, and the mean size of more. A client that streams has chunks of
# kilobytes.
_SMALL_CHUNKS, _MEAN_CHUNK = 512, 64
# What one connection parses at once, before it waits for its turn: fields and chunks, and bytes.
_PIECES, _TURN = 64, 16 * 1024


class _HeldFlow(FlowControl):
    """Flow control that reads no more while `is_held`, whoever asks for more."""

    def __init__(self, transport: asyncio.Transport, is_held: Callable[[], bool]) -> None:
        super().__init__(transport)
        self._is_held = is_held

    def resume_reading(self) -> None:
        """Read again, unless data waits to be parsed."""
        if not self._is_held():
            super().resume_reading()


class BoundedHTTP(BoundedConnection, HttpToolsProtocol):
    """uvicorn's HTTP protocol with limits on the size and duration of headers.

    Data is parsed up to the first requests that have to wait for a response; the rest is held.
    """

    _held = b""
    _waits = False  # for its turn
    _body_left = 0  # of the announced length
    _headers_due: asyncio.TimerHandle | None = None
    _header_bytes = _header_fields = _pieces = 0
    _chunks = _chunk_bytes = 0  # of this body
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
        self.flow = _HeldFlow(self.transport, lambda: bool(self._held))
        self._expect_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        """Release the lease."""
        self._stop_expecting()
        self._held = b""
        if self.flow is not None:  # None: the connection was refused
            super().connection_lost(exc)
        self.on_disconnect()

    def data_received(self, data: bytes) -> None:
        """Parse data, unless earlier data waits; a client is to read before it asks for more."""
        if self._held:
            self._hold(self._held + data)
        else:
            self._parse(data)

    def on_response_complete(self) -> None:
        """Go on with held data."""
        super().on_response_complete()
        if self._held and not self.transport.is_closing():
            self._hold(self._held)

    def _parse(self, data: bytes) -> None:
        begin, self._pieces, left = 0, 0, _TURN
        while begin < len(data):
            if self.pipeline or left <= 0 or self._pieces > _PIECES:
                self._hold(data[begin:])
                return
            end = begin + max(_SLICE, self._body_left)
            left -= 0 if self._body_left >= _SLICE else _SLICE
            self._parse_slice(data[begin:end])
            if self.transport.is_closing() or self.transport.get_protocol() is not self:
                return
            begin = end

    def _hold(self, data: bytes) -> None:
        """Keep `data` until no request of this connection waits, and read no more until then."""
        self._held = data
        self.flow.pause_reading()
        if not self._waits and not self.pipeline:
            self._waits = True
            self.context.turns.wait(self._continue)

    def _continue(self) -> None:
        self._waits = False
        data, self._held = self._held, b""
        if data and not self.transport.is_closing():
            self.flow.resume_reading()
            self._parse(data)

    def _parse_slice(self, data: bytes) -> None:
        """Parse data, and count the bytes that belong to headers."""
        if self._headers_due is None and (self.cycle is None or self.cycle.response_complete):
            # Between requests, any data must become a request in time.
            self._expect_headers()
        self._progressed = False
        super().data_received(data)
        if self._chunks > _SMALL_CHUNKS and self._chunk_bytes < self._chunks * _MEAN_CHUNK:
            self._give_up("small_chunks", RequestError("TOO_LARGE", "too many small chunks"))
        elif not self._progressed:
            # Headers, or trailers after a chunked body.
            self._header_bytes += len(data)
            is_too_long = self._header_bytes > MAX_HEADER_BYTES
            if is_too_long or self._has_too_many_fields:
                self._give_up("headers", RequestError("TOO_LARGE", "the headers are too long"))

    def on_message_begin(self) -> None:
        """Time the headers of a pipelined request too."""
        super().on_message_begin()
        self._chunks = self._chunk_bytes = 0
        if self._headers_due is None:
            self._expect_headers()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Drop trailers: they were not part of the headers that the guard checked."""
        self._header_fields += 1
        self._pieces += 1
        if self._headers_due is not None and not self._has_too_many_fields:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Stop to time the headers."""
        if self._has_too_many_fields:
            return
        self._progressed = True
        self._stop_expecting()
        if self.lease is not None:
            self.lease.request_received()
        lengths = [value for name, value in self.headers if name == b"content-length"]
        self._body_left = int(lengths[0].lstrip(b"0") or b"0") if lengths else 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Count body data as progress."""
        if self._has_too_many_fields:
            return
        self._progressed = True
        self._pieces += 1
        self._chunks += 1
        self._chunk_bytes += len(body)
        self._body_left = max(0, self._body_left - len(body))
        self._header_bytes = 0  # chunk headers may be many, and are not kept
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Count the end of a request as progress."""
        if self._has_too_many_fields:
            return
        self._progressed = True
        super().on_message_complete()

    @property
    def _has_too_many_fields(self) -> bool:
        """True until the connection is closed for it, after the slice that is parsed now."""
        return self._header_fields > MAX_HEADER_FIELDS

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
        self._header_bytes = self._header_fields = 0
        self._headers_due = self.loop.call_later(self.context.settings.body_s, self._no_headers)

    def _stop_expecting(self) -> None:
        if self._headers_due is not None:
            self._headers_due.cancel()
            self._headers_due = None

    def _no_headers(self) -> None:
        self._headers_due = None
        if self._held:  # the rest of the headers may be in it
            self._expect_headers()
            return
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
