"""What an address says of who asks: whether it is this machine, and which network it is of."""

from __future__ import annotations

from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final

# What one subscriber or machine is given (RFC 6177): whoever has one address of it has all.
SUBSCRIBER_BITS: Final = 64
# Addresses whose meaning is kept: each request asks several times who it is from.
_KEPT: Final = 1024


def is_loopback(host: str) -> bool:
    """Whether `host` is a name or an address of this machine alone. No name is looked up."""
    if host.lower().rstrip(".") == "localhost":
        return True
    address = parse(host)
    return address is not None and address.is_loopback


@lru_cache(_KEPT)
def parse(host: str) -> IPv4Address | IPv6Address | None:
    """`host` as an address, without a zone, IPv4 inside IPv6 as IPv4; None if it is none."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return None
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def client_network(host: str) -> str:
    """Whom `host` stands for: an IPv4 address, or the /64 network of an IPv6 address.

    What is no address is "unknown": requests without one share a tenant.
    """
    address = parse(host)
    if address is None:
        return "unknown"
    if isinstance(address, IPv4Address):
        return str(address)
    network = int(address) >> SUBSCRIBER_BITS << SUBSCRIBER_BITS
    return f"{IPv6Address(network)}/{SUBSCRIBER_BITS}"
