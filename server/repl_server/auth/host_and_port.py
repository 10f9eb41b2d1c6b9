"""`HostAndPort`: strict parsing of a host and a port (RFC 3986).

`Host`, `Origin`, `X-Forwarded-For` and model endpoints are compared with the operator's allowlists.
Other programs may parse a text outside the grammar differently, so such a text is rejected.
"""

from __future__ import annotations

import re
from functools import lru_cache
from ipaddress import IPv6Address
from typing import NamedTuple

_PORT = r"(?::(?P<port>[1-9][0-9]{0,4}))?"
_BRACKETS = re.compile(rf"\[(?P<host>[0-9a-f:.]{{2,45}})\]{_PORT}", re.ASCII)
# Letters, digits, hyphens and underscores between single dots; matches IPv4 addresses too.
_LABEL = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_NAME = re.compile(rf"(?P<host>{_LABEL}(?:\.{_LABEL})*){_PORT}", re.ASCII)
_MOST_NAME = 253
_MOST_PORT = 65_535
# Cached parses: nearly all requests have one of a few texts.
_KEPT = 1024


class HostAndPort(NamedTuple):
    """A name in lower case or an address without brackets, and the port if one was given."""

    host: str
    port: int | None

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port is None else f"{host}:{self.port}"


@lru_cache(_KEPT)
def parse_host_and_port(text: str) -> HostAndPort | None:
    """Parse `host` or `host:port`; None for other texts, including those with a login."""
    # Checked before `lower()`, which copies the text.
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
