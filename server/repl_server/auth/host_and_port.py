"""`HostAndPort`: a host and a port as RFC 3986 writes them, strictly: what is doubtful is none.

`Host`, `Origin`, `X-Forwarded-For` and the endpoints of sub-calls are compared with what an
operator has allowed. Text outside the grammar is read in one way here and in another elsewhere.
"""

from __future__ import annotations

import re
from functools import lru_cache
from ipaddress import IPv6Address
from typing import NamedTuple

_PORT = r"(?::(?P<port>[1-9][0-9]{0,4}))?"
_BRACKETS = re.compile(rf"\[(?P<host>[0-9a-f:.]{{2,45}})\]{_PORT}", re.ASCII)
# Letters, digits, hyphens and underscores between single dots; IPv4 addresses, too.
_LABEL = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_NAME = re.compile(rf"(?P<host>{_LABEL}(?:\.{_LABEL})*){_PORT}", re.ASCII)
_MOST_NAME = 253
_MOST_PORT = 65_535
# Texts whose reading is kept: nearly all requests have one of a few.
_KEPT = 1024


class HostAndPort(NamedTuple):
    """A name in small letters or an address, without brackets, and its port if one was given."""

    host: str
    port: int | None

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port is None else f"{host}:{self.port}"


@lru_cache(_KEPT)
def parse_host_and_port(text: str) -> HostAndPort | None:
    """The address that `text` is; None if it is none, or has a login."""
    # A longer one is none, and its small letters are not made.
    if len(text) > _MOST_NAME + 6 or not text.isascii():
        return None
    found = _BRACKETS.fullmatch(text.lower()) or _NAME.fullmatch(text.lower())
    if found is None:
        return None
    host, port = found["host"], int(found["port"] or 0)
    if len(host) > _MOST_NAME or port > _MOST_PORT:
        return None
    if text.startswith("["):
        try:
            host = str(IPv6Address(host))
        except ValueError:
            return None
    return HostAndPort(host, port or None)
