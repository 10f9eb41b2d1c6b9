"""Where a server is, and with which headers it is asked: `ServerAddress` and `ServerAccess`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, urlsplit

from repl_env.llm.endpoints.endpoint_errors import SecretTexts

if TYPE_CHECKING:
    import ssl

# Whether the connection is encrypted. Uploads go by HTTP and all else by WebSocket, to one server.
_SCHEMES = {"http": False, "ws": False, "https": True, "wss": True}


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """A server's address. `path` is empty, or begins with a slash and ends with none."""

    secure: bool
    host: str
    port: int
    path: str

    @classmethod
    def parse(cls, base_url: str) -> ServerAddress:
        """The address that a URL of http, https, ws or wss says; it may end with `/ws`.

        Without a scheme it is http, as OpenEnv has it, on this machine only: nobody said in so
        many words that a key may cross a network unencrypted.

        Raises:
            TypeError, ValueError: what is wrong with it, without a login that may be in it.
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
        return f"{'wss' if self.secure else 'ws'}://{self._place}/ws"

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
    def _place(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if self.port == (443 if self.secure else 80) else f":{self.port}"
        return f"{host}{port}{self.path}"

    def __str__(self) -> str:
        return f"{'https' if self.secure else 'http'}://{self._place}"


@dataclass(frozen=True, slots=True)
class ServerAccess:
    """An address, and what opens it. The headers are secrets: they are in no repr and no error."""

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
        """The access that a client was given.

        The key goes as `Authorization: Bearer`, or as `X-API-Key` if `headers` has an
        `Authorization` of its own, which a proxy or a private Space before the server may want.

        Raises:
            TypeError, ValueError: naming the argument, without what is in it.
        """
        if not isinstance(headers, Mapping | None):
            raise TypeError(f"headers must be a mapping, not {type(headers).__name__}")
        sent = dict(headers or {})
        for name, value in sent.items():
            _check("headers: a name", name)
            _check(f"headers: {name}", value)
        if api_key is not None:
            _check("api_key", api_key)
            taken = "authorization" in map(str.lower, sent)
            sent.update({"X-API-Key": api_key} if taken else {"Authorization": f"Bearer {api_key}"})
        if tls is not None:
            _check_tls(tls)
        return cls(ServerAddress.parse(base_url), sent, SecretTexts(api_key, sent), tls)


def _split(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError:
        raise ValueError("base_url is no URL: its host is none") from None


def _check_host(host: str) -> None:
    """ValueError unless it can be looked up."""
    try:
        host.encode("idna")
    except UnicodeError:
        raise ValueError("base_url is no URL: its host is none") from None
    if not host.isprintable():
        raise ValueError("base_url is no URL: its host is none")


def _port(parts: SplitResult) -> int | None:
    # What stands in place of a port is not repeated: it may be a password.
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
    """TypeError or ValueError unless a header can hold `value`, which is not repeated."""
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a str, not {type(value).__name__}")
    if not value or not value.isascii() or not value.isprintable():
        raise ValueError(f"{name} must be printable ASCII, and not empty")
