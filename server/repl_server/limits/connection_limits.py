"""`ConnectionLimits`: bounds the open connections, in total and by address."""

from __future__ import annotations

from collections import Counter

from ..auth.trusted_proxies import TrustedProxies
from ..protocol.request_error import RequestError
from ..quotas.tenant_quota import ADDRESS_QUOTA
from ..settings import Settings
from ..telemetry.recorder import Telemetry
from ..tenants.client_address import client_network, is_loopback

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
