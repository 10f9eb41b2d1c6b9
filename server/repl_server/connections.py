"""Connections: their number, the memory and time of what they sent in part, slow readers."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter, deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import ClassVar, Protocol
from weakref import WeakValueDictionary

from .auth import TrustedProxies
from .settings import Settings
from .telemetry import Telemetry
from .tenants import ADDRESS_QUOTA, RequestError, client_network, is_loopback

# `ConnectionLimits`: bounds the open connections, in total and by address.

# Connections from one address without a request. A browser opens six, and a client of repl-env one
# per session; each sends its request within one round trip.
HALF_OPEN = 64


class ConnectionLimits:
    """The connections of one server.

    The quota bounds the connections of each tenant that is an address, and HALF_OPEN those without
    a request. Connections from trusted proxies are exempt: they carry many clients.
    """

    def __init__(self, settings: Settings, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._limit = settings.connections
        self._proxies = TrustedProxies(settings.trusted_proxies)
        self._local = is_loopback(settings.host)
        keyed = not settings.no_auth and (settings.api_keys or settings.hashed_keys)
        quota = settings.quota or (None if self._local else ADDRESS_QUOTA)
        self._per_address = None if keyed or quota is None else quota.connections
        self._by_address: Counter[str] = Counter()
        self._half_open: Counter[str] = Counter()
        self.open = 0

    def admit(self, host: str) -> ConnectionLease:
        """Count a connection from `host`.

        Raises:
            RequestError: CAPACITY_REACHED, QUOTA_EXCEEDED.
        """
        address = client_network(host)
        if self.open >= self._limit:
            raise self._refused(host, "total", "CAPACITY_REACHED", self._limit)
        if self._proxies.trusts(host):
            return ConnectionLease(self, None)
        if not self._local and self._half_open[address] >= HALF_OPEN:
            raise self._refused(host, "half_open", "QUOTA_EXCEEDED", HALF_OPEN)
        if self._per_address is not None and self._by_address[address] >= self._per_address:
            raise self._refused(host, "address", "QUOTA_EXCEEDED", self._per_address)
        return ConnectionLease(self, address)

    def record_closed(self, host: str, reason: str) -> None:
        """Log and count a connection from `host` that a limit closed."""
        self._telemetry.connection_ended(host, reason)

    def _refused(self, host: str, reason: str, code: str, limit: int) -> RequestError:
        self._telemetry.connection_refused(host, reason)
        return RequestError(code, f"the limit is {limit} connections", retry_after=1.0)

    def count(self, address: str | None, *, open: int = 0, half_open: int = 0) -> None:
        """Change the counts of `address`; called by leases."""
        self.open += open
        if address is None:
            return
        for counter, change in ((self._by_address, open), (self._half_open, half_open)):
            counter[address] += change
            if not counter[address]:
                del counter[address]


class ConnectionLease:
    """The claim of one open connection on the limits."""

    __slots__ = ("_address", "_connections", "_half_open", "_open")

    def __init__(self, connections: ConnectionLimits, address: str | None) -> None:
        self._connections = connections
        self._address = address
        self._open = self._half_open = True
        connections.count(address, open=1, half_open=1)

    def request_received(self) -> None:
        """The connection is no longer half open: the headers of a request arrived."""
        if self._half_open:
            self._half_open = False
            self._connections.count(self._address, half_open=-1)

    def release(self) -> None:
        """The connection closed. Idempotent."""
        self.request_received()
        if self._open:
            self._open = False
            self._connections.count(self._address, open=-1)


# `ReceiveBuffers`: limits on the memory and time of partly received messages, over all clients.
#
# A client that sends the beginning of a message makes the server hold it until the rest arrives.

# Minimum rate in bytes per second. A client that sends or reads more slowly occupies memory and a
# connection at next to no cost.
MIN_RATE = 64 * 1024
# Seconds that the server reads on and discards after it refused a message: a client that still
# sends reads the answer only when it is done.
LINGER_S = 1.0
# Bodies of more bytes are received a few at a time, by client: each is held several times over
# while it is parsed and its request runs.
LARGE_BODY = 1 << 20
_LARGE_AT_ONCE = 2
# One client of a public server may hold the limit divided by this.
_SHARE = 4


def receive_timeout(seconds: float, count: int) -> float:
    """Seconds that `count` bytes may take: `seconds`, and the transfer time at MIN_RATE."""
    return seconds + count / MIN_RATE


class IncomingBody(Protocol):
    """The body of a request in progress. `upload`: it is an upload."""

    upload: bool

    def abort(self, refusal: RequestError) -> None:
        """Fail the request with `refusal` unless its body is complete."""


class ReceiveBuffers:
    """Bytes of messages that the application has not consumed, accounted by client.

    All together are bounded by `Settings.inbound_bytes`. On a public server one client may hold a
    quarter of that, or one message if that is larger.

    A draining server waits for uploads, and aborts other partial bodies: they cannot lead to a
    session any more.
    """

    __slots__ = (
        "_bodies",
        "_by_client",
        "_large",
        "_limit",
        "_share",
        "_stopped",
        "_uploads_done",
        "buffered",
    )

    def __init__(self, settings: Settings) -> None:
        self._limit = settings.inbound_bytes
        # A message exists twice for a moment: here, and in the buffer that it was read from.
        share = max(self._limit // _SHARE, 2 * settings.largest_message)
        self._share = self._limit if is_loopback(settings.host) else min(self._limit, share)
        self._by_client: Counter[Hashable] = Counter()
        self.buffered = 0
        self._large: WeakValueDictionary[Hashable, asyncio.Semaphore] = WeakValueDictionary()
        self._bodies: set[IncomingBody] = set()
        self._stopped: RequestError | None = None
        self._uploads_done = asyncio.Event()
        self._uploads_done.set()

    def begin(self, body: IncomingBody) -> None:
        """Register the request of `body`, until `done`."""
        self._bodies.add(body)
        if body.upload:
            self._uploads_done.clear()
        if self._stopped is not None:
            body.abort(self._stopped)

    def done(self, body: IncomingBody) -> None:
        """Unregister the request of `body`."""
        self._bodies.discard(body)
        if not any(each.upload for each in self._bodies):
            self._uploads_done.set()

    def large_bodies(self, client: Hashable) -> asyncio.Semaphore:
        """Return the turns for large bodies of one client, as long as any of them holds it."""
        return self._large.setdefault(client, asyncio.Semaphore(_LARGE_AT_ONCE))

    async def wait_uploads(self) -> None:
        """Wait until no upload is in progress."""
        await self._uploads_done.wait()

    def stop(self, refusal: RequestError) -> None:
        """Abort partial bodies with `refusal`, now and from now on."""
        self._stopped = refusal
        for body in tuple(self._bodies):
            body.abort(refusal)

    def adjust(self, client: Hashable, count: int) -> bool:
        """Account for `count` more bytes, or fewer if negative; False above a limit."""
        mine = self._by_client[client] + count
        if count > 0 and (self.buffered + count > self._limit or mine > self._share):
            return False
        self.buffered += count
        if mine:
            self._by_client[client] = mine
        else:
            # Forget clients that hold nothing.
            del self._by_client[client]
        return True


class ParserTurns:
    """Lets one connection go on to parse in each turn of the event loop, in rotation.

    A kilobyte has up to 170 chunks of a body or frames of a WebSocket, and each calls Python: with
    many connections, others would wait for all of them at each hop of their steps.
    """

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()

    def wait(self, parse: Callable[[], None]) -> None:
        """Call `parse` in a later turn of the loop."""
        self._waiting.append(parse)
        if len(self._waiting) == 1:
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        parse = self._waiting[0]
        try:
            parse()
        finally:
            self._waiting.popleft()
            if self._waiting:
                asyncio.get_running_loop().call_soon(self._turn)


# `BoundedConnection`: a counted connection that is closed if its client stops reading.


@dataclass(frozen=True, slots=True)
class ConnectionContext:
    """Shared by all connections of one server."""

    settings: Settings
    connections: ConnectionLimits
    inbound: ReceiveBuffers
    turns: ParserTurns = field(default_factory=ParserTurns)


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
