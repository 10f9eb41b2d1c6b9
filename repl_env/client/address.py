"""The address of a server, the headers of requests to it, and the time-outs of a client."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, urlsplit

from repl_env.common.values import above_zero
from repl_env.llm.completions import SecretTexts

if TYPE_CHECKING:
    import ssl


# `ServerAddress` and `ServerAccess`: the address of a server, and the headers of requests to it.

# Whether the connection is encrypted. Uploads use HTTP and all else WebSocket, to one server.
_SCHEMES = {"http": False, "ws": False, "https": True, "wss": True}


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """A server's address. `path` is empty, or begins with a slash and does not end with one."""

    secure: bool
    host: str
    port: int
    path: str

    @classmethod
    def parse(cls, base_url: str) -> ServerAddress:
        """Parse a URL of http, https, ws or wss; it may end with `/ws`.

        A URL without a scheme means http, as in OpenEnv, on this machine only: the caller has not
        agreed to send a key unencrypted over a network.

        Raises:
            TypeError, ValueError: the reason, without a login that the URL may contain.
        """
        if not isinstance(base_url, str):
            raise TypeError(f"base_url must be a str, not {type(base_url).__name__}")
        scheme, found, _ = base_url.partition("://")
        if found and scheme.lower() not in _SCHEMES:
            raise ValueError("base_url must begin with http://, https://, ws:// or wss://")
        parts = _split(base_url if found else f"http://{base_url}")
        if "@" in parts.netloc or parts.query or parts.fragment:
            raise ValueError("base_url has a login, query or fragment; use headers= or api_key=")
        if not parts.hostname:
            raise ValueError("base_url names no host")
        _check_host(parts.hostname)
        secure = _SCHEMES[parts.scheme]
        port = _port(parts) or (443 if secure else 80)
        path = parts.path.rstrip("/").removesuffix("/ws").rstrip("/")
        address = cls(secure, parts.hostname, port, path)
        if not found and not address.loopback:
            raise ValueError("base_url must begin with http://, https://, ws:// or wss://")
        return address

    @property
    def socket(self) -> str:
        """The URL of the WebSocket."""
        return f"{'wss' if self.secure else 'ws'}://{self._location}/ws"

    @property
    def loopback(self) -> bool:
        """Whether this names the machine itself."""
        if self.host == "localhost":
            return True
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def _location(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if self.port == (443 if self.secure else 80) else f":{self.port}"
        return f"{host}{port}{self.path}"

    def __str__(self) -> str:
        return f"{'https' if self.secure else 'http'}://{self._location}"


@dataclass(frozen=True, slots=True)
class ServerAccess:
    """An address with its headers. The headers are secrets: they are in no repr and no error."""

    address: ServerAddress
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    secrets: SecretTexts = field(default_factory=lambda: SecretTexts(None, {}), repr=False)
    tls: ssl.SSLContext | None = field(default=None, repr=False)

    @classmethod
    def of(
        cls,
        base_url: str,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> ServerAccess:
        """Return the access for a client's arguments.

        The key is sent as `Authorization: Bearer`, or as `X-API-Key` if `headers` has its own
        `Authorization`, for example for a proxy or a private Space.

        Raises:
            TypeError, ValueError: naming the argument, without its content.
        """
        if not isinstance(headers, Mapping | None):
            raise TypeError(f"headers must be a mapping, not {type(headers).__name__}")
        sent = dict(headers or {})
        for name, value in sent.items():
            _check("headers: a name", name)
            _check(f"headers: {name}", value)
        if api_key is not None:
            _check("api_key", api_key)
            has_authorization = "authorization" in map(str.lower, sent)
            sent.update(
                {"X-API-Key": api_key}
                if has_authorization
                else {"Authorization": f"Bearer {api_key}"}
            )
        if tls is not None:
            _check_tls(tls)
        return cls(ServerAddress.parse(base_url), sent, SecretTexts(api_key, sent), tls)


def _split(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError:
        raise ValueError("base_url is no URL: its host is none") from None


def _check_host(host: str) -> None:
    """Raise ValueError unless the host can be looked up."""
    try:
        host.encode("idna")
    except UnicodeError:
        raise ValueError("base_url is no URL: its host is none") from None
    if not host.isprintable():
        raise ValueError("base_url is no URL: its host is none")


def _port(parts: SplitResult) -> int | None:
    # Text in place of a port is not repeated: it may be a password.
    try:
        if parts.port != 0:
            return parts.port
    except ValueError:
        pass
    raise ValueError("base_url is no URL: its port must be a number from 1 to 65535") from None


def _check_tls(tls: object) -> None:
    import ssl

    if not isinstance(tls, ssl.SSLContext):
        raise TypeError(f"tls must be an ssl.SSLContext, not {type(tls).__name__}")


def _check(name: str, value: object) -> None:
    """Raise TypeError or ValueError unless `value`, which is not repeated, is a valid header."""
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a str, not {type(value).__name__}")
    if not value or not value.isascii() or not value.isprintable():
        raise ValueError(f"{name} must be printable ASCII, and not empty")


# `Timeouts`: the time limits of a client, and the pauses between attempts to reach a server.

_MIB = 1 << 20
# The first attempt is immediate, then pauses double; a random part keeps the clients of one server
# from returning all at once.
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """In seconds, and in bytes per message.

    `message_s` None means no limit, `ping_s` None no pings. `reconnect_s`: in which a lost
    connection is opened again; None: for as long as the server keeps the session.
    """

    connect_s: float = 10.0
    message_s: float | None = None
    ping_s: float | None = 20.0
    message_bytes: int = 100 * _MIB
    reconnect_s: float | None = None

    @classmethod
    def of(
        cls,
        *,
        connect_timeout_s: float,
        message_timeout_s: float | None,
        max_message_size_mb: float,
        ping_s: float | None,
        reconnect_s: float | None = None,
    ) -> Timeouts:
        """Return the time limits for a client's arguments.

        TypeError or ValueError naming the argument.
        """
        return cls(
            connect_s=above_zero(connect_timeout_s, "connect_timeout_s"),
            message_s=optional_seconds(message_timeout_s, "message_timeout_s"),
            ping_s=optional_seconds(ping_s, "ping_s"),
            message_bytes=int(above_zero(max_message_size_mb, "max_message_size_mb") * _MIB),
            reconnect_s=optional_seconds(reconnect_s, "reconnect_s"),
        )


def pause(attempt: int) -> float:
    """Return the seconds before an attempt to reach the server; none before number 0."""
    if attempt <= 0:
        return 0.0
    longest = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(attempt, 10))
    return longest * random.uniform(0.5, 1.0)


def optional_seconds(value: float | None, name: str) -> float | None:
    """Return `value` as seconds, or None; TypeError or ValueError naming the argument."""
    return None if value is None else above_zero(value, name)
