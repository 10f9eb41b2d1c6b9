"""Addresses of clients: loopback or not, and the network that counts as one client."""

from __future__ import annotations

from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final

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
