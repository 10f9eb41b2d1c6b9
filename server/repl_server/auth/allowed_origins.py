"""`AllowedOrigins`: which web pages may ask.

A page of any site can make a visitor's browser send requests here, with the rights of the place
that the browser is in: of this machine, for a server on loopback. Two things tell such requests:

- `Origin`, which browsers send with WebSockets and with all requests but plain GETs of the page's
  own site. Only the server's own origin and those that the operator named are let in.
- `Host`. A page can have its own name point to this machine (DNS rebinding); its requests are then
  to "its own site", and `Host` is that name. A name that is not known to be ours is worth nothing:
  what can be trusted without asking the operator are addresses and `localhost`. Every browser sends
  it, so what comes without one in HTTP/1.0, which does not ask for it (RFC 9112, section 3.2), was
  sent by no page: balancers' probes do that. They only look, and are let look; what would change
  something might still be a page's, behind a proxy that takes its `Host` away.

Where a key is asked for, the key decides: a browser sends none by itself.
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
# What browsers say of requests of other sites' pages that carry no `Origin`: images, scripts.
_ELSEWHERE = frozenset({"cross-site", "same-site"})
_LOOKS = frozenset({"GET", "HEAD", "OPTIONS"})

Headers = Mapping[str, Sequence[str]]


class AllowedOrigins:
    """The origins of pages that may ask.

    Args:
        named: by the operator, such as "https://example.org".
        loopback: the server is for this machine only.

    Raises:
        ValueError: one of `named` is no origin.
    """

    def __init__(self, named: Iterable[str], *, loopback: bool) -> None:
        self._named: set[str] = set()
        self._names: set[str] = set()
        self._loopback = loopback
        for each in named:
            origin = normal(each.rstrip("/"))
            if origin is None:
                raise ValueError(f"{each!r} is no origin such as https://example.org")
            self._named.add(origin)
            self._names.add(_host_of(origin.partition("://")[2]))

    @property
    def named(self) -> list[str]:
        """Those that the operator has named, as browsers write them."""
        return sorted(self._named)

    def check(self, headers: Headers, scheme: str, *, keyed: bool, hostless: bool = False) -> None:
        """Refuse a request that a web page sent which may not.

        `scheme` is the one that the client used; `keyed`: the request came with a key; `hostless`:
        it needs no `Host`, by `needs_no_host`.

        Raises:
            Refusal: FORBIDDEN.
        """
        host = _only(headers, "host")
        nameless = hostless and "host" not in headers
        if self._loopback and not (keyed or nameless or self._is_ours(host)):
            # A page whose own name leads here, or a proxy that passes a name on.
            unknown = "This Host is not known; name its origin with --origin to allow it."
            raise RequestError(
                "FORBIDDEN", unknown if host else "A request has one Host, and one only."
            )
        if "origin" in headers:
            self._check_origin(headers, host, scheme, keyed=keyed)
        elif (
            _only(headers, "sec-fetch-site") in _ELSEWHERE
            and _only(headers, "sec-fetch-mode") != "navigate"
        ):
            raise RequestError("FORBIDDEN", "A page of another site asked for this.")

    def _check_origin(self, headers: Headers, host: str, scheme: str, *, keyed: bool) -> None:
        origin = normal(_only(headers, "origin"))
        if origin is not None:
            if origin in self._named:
                return
            if origin == normal(f"{scheme}://{host}") and (keyed or self._is_ours(host)):
                return
        raise RequestError("FORBIDDEN", "Pages of this origin may not ask; --origin allows one.")

    def _is_ours(self, host: str) -> bool:
        name = _host_of(host)
        return is_loopback(name) or parse(name) is not None or name in self._names


def needs_no_host(scope: Mapping[str, Any]) -> bool:
    """Whether a request (ASGI) may come without `Host`: of HTTP/1.0, and one that only looks."""
    return scope.get("http_version") == "1.0" and scope.get("method") in _LOOKS


def normal(origin: str) -> str | None:
    """`origin` in the one form in which equal ones are equal texts; None if it is none."""
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
    """The name or address in `text`, a host with or without a port; "" if it is none."""
    address = parse_host_and_port(text)
    return "" if address is None else address.host


def _only(headers: Headers, name: str) -> str:
    # Two of a header that comes once are as bad as none: who reads which?
    values = headers.get(name, ())
    return values[0] if len(values) == 1 else ""
