"""`AllowedOrigins`: the web pages that may send requests.

A page of any site can make a visitor's browser send requests to this server, with the network
access
of that browser: to a server on loopback, that of this machine. Two headers identify such requests:

- `Origin`: browsers send it with WebSockets and with all requests except same-origin GETs. Only the
  server's own origin and the origins that the operator named are accepted.
- `Host`: a page can make its own name resolve to this machine (DNS rebinding), and its requests
  are then same-origin, with that name as their `Host`. Without configuration, only addresses and
  `localhost` are trusted. Every browser sends `Host`, so an HTTP/1.0 request without it (RFC 9112,
  section 3.2) is not a page's: probes of load balancers look like that. Such a request may only
  read, because a proxy may have removed the `Host` of a page's request.

A request with a valid key is accepted from any host: browsers never add a key by themselves.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..protocol.request_error import RequestError
from ..tenants.client_address import is_loopback, parse
from .host_and_port import parse_host_and_port

_ORIGIN = re.compile(r"([a-z][a-z0-9+.-]*)://(.+)")
_DEFAULT_PORTS = {"http": 80, "https": 443}
# Values of Sec-Fetch-Site for requests of other sites' pages without `Origin`: images, scripts.
_ELSEWHERE = frozenset({"cross-site", "same-site"})
_LOOKS = frozenset({"GET", "HEAD", "OPTIONS"})

Headers = Mapping[str, Sequence[str]]


class AllowedOrigins:
    """The allowed origins of a server.

    Args:
        named: origins that the operator named, such as "https://example.org".
        loopback: the server listens on loopback only.

    Raises:
        ValueError: one of `named` is not an origin.
    """

    def __init__(self, named: Iterable[str], *, loopback: bool) -> None:
        self._named: set[str] = set()
        self._names: set[str] = set()
        self._loopback = loopback
        for each in named:
            origin = normal(each.rstrip("/"))
            if origin is None:
                raise ValueError(f"origins: {each!r} is not an origin such as https://example.org")
            self._named.add(origin)
            self._names.add(_host_of(origin.partition("://")[2]))

    @property
    def named(self) -> list[str]:
        """The origins that the operator named, in the form that browsers send."""
        return sorted(self._named)

    def check(self, headers: Headers, scheme: str, *, keyed: bool, hostless: bool = False) -> None:
        """Reject a request of a web page that is not allowed.

        `scheme` is the one that the client used; `keyed`: the request has a valid key; `hostless`:
        the request may omit `Host` (`needs_no_host`).

        Raises:
            RequestError: FORBIDDEN.
        """
        host = _only(headers, "host")
        nameless = hostless and "host" not in headers
        if self._loopback and not (keyed or nameless or self._is_ours(host)):
            # A DNS-rebinding page, or a proxy that forwards an unknown name.
            unknown = "this Host is not allowed; --origin with its origin allows it"
            raise RequestError(
                "FORBIDDEN", unknown if host else "a request must have exactly one Host"
            )
        if "origin" in headers:
            self._check_origin(headers, host, scheme, keyed=keyed)
        elif (
            _only(headers, "sec-fetch-site") in _ELSEWHERE
            and _only(headers, "sec-fetch-mode") != "navigate"
        ):
            raise RequestError("FORBIDDEN", "a page of another site sent this request")

    def _check_origin(self, headers: Headers, host: str, scheme: str, *, keyed: bool) -> None:
        origin = normal(_only(headers, "origin"))
        if origin is not None:
            if origin in self._named:
                return
            if origin == normal(f"{scheme}://{host}") and (keyed or self._is_ours(host)):
                return
        raise RequestError("FORBIDDEN", "this Origin is not allowed; --origin allows one")

    def _is_ours(self, host: str) -> bool:
        name = _host_of(host)
        return is_loopback(name) or parse(name) is not None or name in self._names


def needs_no_host(scope: Mapping[str, Any]) -> bool:
    """Return whether an ASGI request may omit `Host`: an HTTP/1.0 request that only reads."""
    return scope.get("http_version") == "1.0" and scope.get("method") in _LOOKS


def normal(origin: str) -> str | None:
    """`origin` in normal form, so that equal origins are equal texts; None for other texts."""
    found = _ORIGIN.fullmatch(origin.lower())
    if found is None:
        return None
    scheme, address = found[1], parse_host_and_port(found[2])
    if address is None:
        return None
    if address.port == _DEFAULT_PORTS.get(scheme):
        address = address._replace(port=None)
    return f"{scheme}://{address}"


def _host_of(text: str) -> str:
    """The name or address in `text`, a host with or without a port; "" for other texts."""
    address = parse_host_and_port(text)
    return "" if address is None else address.host


def _only(headers: Headers, name: str) -> str:
    # A repeated header counts as missing: the readers of a request may differ on which one applies.
    values = headers.get(name, ())
    return values[0] if len(values) == 1 else ""
