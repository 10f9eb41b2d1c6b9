"""Client addresses: whether an address is loopback, and which clients share a network."""

from __future__ import annotations

import pytest

from repl_server.tenants import client_network, is_loopback


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.9.9.9", "::1", "localhost", "LOCALHOST.", "::ffff:127.0.0.1"]
)
def test_loopback_addresses(host) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "::", "", "10.0.0.1", "example.org", "localhost.example.org", "1"]
)
def test_other_addresses(host) -> None:
    assert not is_loopback(host)


@pytest.mark.parametrize(
    ("host", "whose"),
    [
        ("198.51.100.7", "198.51.100.7"),
        ("::ffff:198.51.100.7", "198.51.100.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::", "2001:db8:1:2::/64"),
        ("2001:db8:1:3::1", "2001:db8:1:3::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("nonsense", "unknown"),
        ("", "unknown"),
    ],
)
def test_a_client_is_an_ipv4_address_or_an_ipv6_subscriber_prefix(host, whose) -> None:
    assert client_network(host) == whose
