"""`Tenant`: the key or address that sessions, contexts and quotas belong to; what it is refused."""

from __future__ import annotations

import json
import math
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any, Final, Literal, Protocol

from repl_env.client.protocol import CODES

# `RequestError`: a request that the server does not perform, by the codes of `client/protocol.py`.

# Header names and values as ASGI carries them.
Headers = list[tuple[bytes, bytes]]


class RequestError(Exception):
    """A request that failed or was refused, as its client sees it.

    `code` is a key of `repl_env.client.protocol.CODES`. `retry_after` is in seconds;
    None if unknown. `details` are further fields of the reply. `id` identifies the error in the
    log.
    """

    def __init__(
        self, code: str, message: str, *, retry_after: float | None = None, **details: Any
    ) -> None:
        self.code = code
        self.message = message
        self.retry_after = retry_after
        self.details = details
        self.id = uuid.uuid4().hex
        super().__init__(f"{code}: {message}")

    @property
    def status(self) -> int:
        """The HTTP status."""
        return CODES[self.code].status

    @property
    def close(self) -> int | None:
        """The code to close a WebSocket with; None if the socket stays open after this error."""
        return CODES[self.code].close

    def data(self) -> dict[str, Any]:
        """The fields of the error reply."""
        fields: dict[str, Any] = {"message": self.message, "code": self.code, "id": self.id}
        if self.retry_after is not None:
            fields["retry_after"] = self.retry_after
        return {**fields, **self.details}


def draining_error() -> RequestError:
    """The error for requests that reach a server which is about to stop."""
    return RequestError("DRAINING", "the server is shutting down; try again later")


def socket_closed_error(close: int, reason: str) -> RequestError:
    """The error for a request whose session ended; `close`: the close code its socket would get."""
    drains = close == CODES["DRAINING"].close
    return RequestError("DRAINING" if drains else "UNKNOWN_SESSION", reason)


def http_response(refusal: RequestError) -> tuple[Headers, bytes]:
    """The headers and the body of an error as an HTTP response."""
    text = json.dumps(refusal.data()).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(text)).encode()),
    ]
    if refusal.retry_after is not None:
        headers.append((b"retry-after", str(math.ceil(refusal.retry_after)).encode()))
    if refusal.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    return headers, text


# `TenantQuota`: limits on the resources of one tenant, and their `sessions=8` notation.

_MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantQuota:
    """Limits on the resources that one tenant uses at one time or per hour; None is no limit.

    Args:
        sessions: open sessions at one time, including those in their grace period.
        steps_per_second: average rate of steps; bursts may have ten times as many.
        requests_per_second: average rate of requests of any type; bursts as for steps.
        cpu_seconds_per_hour: CPU time of the processes of all sessions.
        calls_per_hour: sub-calls of all sessions.
        uploaded_bytes: memory of uploads, as received and as decoded for sessions: a text of 100 MB
            counts once, and again while sessions begin with it. The default suffices for one
            upload of the largest size.
        connections: WebSockets and HTTP requests at one time.

    Raises:
        TypeError, ValueError: naming the field that is not a non-negative number.
    """

    sessions: int | None = None
    steps_per_second: float | None = None
    requests_per_second: float | None = None
    cpu_seconds_per_hour: float | None = None
    calls_per_hour: int | None = None
    uploaded_bytes: int | None = 2560 * _MIB
    connections: int | None = None

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise TypeError(f"{each.name} must be a number, not {type(value).__name__}")
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{each.name} must be at least 0 and finite, not {value}")


# For anonymous tenants, who are distinguished only by their addresses.
ADDRESS_QUOTA = TenantQuota(
    sessions=8,
    steps_per_second=50,
    requests_per_second=200,
    cpu_seconds_per_hour=1800,
    calls_per_hour=500,
    uploaded_bytes=512 * _MIB,
    connections=32,
)


def parse_quota(lines: Sequence[str], *, public: bool) -> TenantQuota | None:
    """Parse `NAME=VALUE` texts; None for no texts.

    Fields without a text keep their defaults: on a `public` server, those of ADDRESS_QUOTA.

    Raises:
        ValueError: naming the text.
    """
    if not lines:
        return None
    values = _numbers(_split(lines))
    try:
        return replace(ADDRESS_QUOTA if public else TenantQuota(), **values)
    except ValueError as error:
        raise ValueError(f"quota: {error}") from None


def _split(lines: Sequence[str]) -> dict[str, str]:
    if wrong := [line for line in lines if not line.partition("=")[2]]:
        raise ValueError(f"quota: {wrong[0]!r} is not NAME=VALUE, such as sessions=8")
    return dict(line.partition("=")[::2] for line in lines)


def _numbers(texts: Mapping[str, str]) -> dict[str, Any]:
    kinds = {
        field.name: int if "int" in str(field.type) else float for field in fields(TenantQuota)
    }
    if unknown := texts.keys() - kinds.keys():
        raise ValueError(f"quota: {min(unknown)!r} is not one of {', '.join(kinds)}")
    numbers: dict[str, Any] = {}
    for name, text in texts.items():
        try:
            numbers[name] = kinds[name](text)
        except ValueError:
            whole = "a whole number" if kinds[name] is int else "a number"
            raise ValueError(f"quota: {name} must be {whole}, not {text!r}") from None
    return numbers


# Addresses of clients: loopback or not, and the network that counts as one client.

# Bits of the network that one subscriber or machine is given (RFC 6177): all its addresses are
# theirs.
SUBSCRIBER_BITS: Final = 64
# Parsed addresses that are cached: each request needs the address of its client several times.
_KEPT: Final = 1024


def is_loopback(host: str) -> bool:
    """Return whether `host` is a name or an address of this machine. No name is resolved."""
    if host.lower().rstrip(".") == "localhost":
        return True
    address = parse(host)
    return address is not None and address.is_loopback


@lru_cache(_KEPT)
def parse(host: str) -> IPv4Address | IPv6Address | None:
    """`host` as an address, without a zone, IPv4-mapped IPv6 as IPv4; None for other texts."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return None
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def client_network(host: str) -> str:
    """The client that `host` counts as: an IPv4 address, or the /64 network of an IPv6 address.

    Any other text counts as "unknown": requests without an address share one tenant.
    """
    address = parse(host)
    if address is None:
        return "unknown"
    if isinstance(address, IPv4Address):
        return str(address)
    network = int(address) >> SUBSCRIBER_BITS << SUBSCRIBER_BITS
    return f"{IPv6Address(network)}/{SUBSCRIBER_BITS}"


# `Tenant`.


@dataclass(frozen=True, slots=True)
class Tenant:
    """The name of an API key or, on a server without keys, the address of the client."""

    kind: Literal["key", "address"]
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


class SessionIdentity(Protocol):
    """A session as logs and metrics name it."""

    id: str
    tenant: Tenant


def tenant_of(scope: Mapping[str, Any]) -> Tenant:
    """The tenant of an ASGI request: set by the request guard, or else the client's address."""
    tenant: Tenant | None = scope.get("state", {}).get("tenant")
    if tenant is not None:
        return tenant
    client = scope.get("client")
    return Tenant("address", client[0] if client else "")
