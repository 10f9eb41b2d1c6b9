"""`TrustedProxies`: the client address of requests that come through proxies.

Any client can send `X-Forwarded-For` and `X-Forwarded-Proto`, so these headers are used only in
requests from proxies that the operator named.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Any

from ..tenants.client_address import parse
from .host_and_port import parse_host_and_port

_SCHEMES = frozenset({"http", "https"})


class TrustedProxies:
    """The proxies in front of a server, as addresses or networks.

    Raises:
        ValueError: one of `trusted` is neither.
    """

    def __init__(self, trusted: Iterable[str] = ()) -> None:
        self._networks: list[IPv4Network | IPv6Network] = []
        for each in trusted:
            try:
                self._networks.append(ip_network(each, strict=False))
            except ValueError:
                raise ValueError(
                    f"trusted_proxies: {each!r} is not an address or network"
                ) from None

    def trusts(self, host: str) -> bool:
        """Return whether `host` is the address of a proxy."""
        address = parse(host)
        return address is not None and any(address in network for network in self._networks)

    def client(self, scope: Any) -> str:
        """The client address of a request; "" if the transport has none.

        Each proxy appends the address of its peer, so the client is the last entry that is not a
        proxy. The client may have written the entries before it.
        """
        peer = scope["client"][0] if scope.get("client") else ""
        if not self.trusts(peer):
            return peer
        nearest = peer
        for entry in reversed(_entries(scope["headers"], b"x-forwarded-for")):
            host = _without_port(entry)
            if parse(host) is None:
                return nearest
            nearest = host
            if not self.trusts(host):
                break
        return nearest

    def scheme(self, scope: Any) -> str:
        """ "http" or "https": the scheme that the client used."""
        scheme = {"ws": "http", "wss": "https"}.get(scope["scheme"], scope["scheme"])
        peer = scope["client"][0] if scope.get("client") else ""
        if self.trusts(peer):
            schemes = _entries(scope["headers"], b"x-forwarded-proto")
            if len(schemes) == 1 and schemes[0] in _SCHEMES:
                return schemes[0]
        return str(scheme)


def _entries(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> Sequence[str]:
    together = ",".join(value.decode("latin-1") for key, value in headers if key == name)
    return [entry for each in together.split(",") if (entry := each.strip())]


def _without_port(entry: str) -> str:
    if parse(entry) is not None:
        return entry
    address = parse_host_and_port(entry)
    return "" if address is None else address.host
