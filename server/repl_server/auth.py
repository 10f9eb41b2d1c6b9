"""`Authenticator`: the tenant of a request, by API key or address; origins, hosts and proxies."""

from __future__ import annotations

import base64
import errno
import fcntl
import hashlib
import hmac
import logging
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from io import BufferedReader, FileIO
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_network
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

from repl_env.common.files import open_regular, refusal

from .settings import Settings
from .tenants import RequestError, Tenant, client_network, is_loopback, parse

# `APIKeys`: API keys, of which the server stores only hashes.
#
# A key file has one line per key: `name:hash`, with the SHA-256 of the key as 64 hexadecimal
# digits, and perhaps ` expires=TIME`. Empty lines and comments after `#` are ignored. An unsalted
# hash suffices: a key has 256 random bits.

# Environment variable with lines of a key file, separated by commas or line breaks.
VARIABLE = "REPL_ENV_API_KEYS"

_KEY_BYTES = 32
# Identifies a leaked key, to people and to secret scanners.
_PREFIX = "repl_"
# Names are short and plain, because they appear in logs and as metric labels.
_KEY_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_HASH = re.compile(r"[0-9a-fA-F]{64}")
_EXPIRES = "expires="


class StoredKey(NamedTuple):
    """The hash of a key, and the time from which the key is refused; None: never."""

    digest: bytes
    expires: datetime | None = None

    @property
    def expired(self) -> bool:
        """True if the key is refused now."""
        return self.expires is not None and self.expires <= datetime.now(UTC)

    def line(self, name: str) -> str:
        """The line of the key in a key file."""
        entry = f"{name}:{self.digest.hex()}"
        return entry if self.expires is None else f"{entry} {_EXPIRES}{time_text(self.expires)}"


class APIKeys:
    """Hashes of keys by name; may be empty."""

    __slots__ = ("_stored",)

    def __init__(self, stored: Mapping[str, StoredKey]) -> None:
        self._stored = dict(stored)

    @classmethod
    def read(cls, path: Path, *, wait: bool = True) -> APIKeys:
        """Read a key file, not while a command changes it.

        Raises:
            ValueError: naming the invalid line, or the file if it is world-writable.
            BlockingIOError: a command changes the file now, with `wait` False.
            OSError: the file cannot be read.
        """
        with open_regular(path) as file, named(path):
            _lock_shared(file, wait=wait)
            if os.fstat(file.fileno()).st_mode & stat.S_IWOTH:
                raise ValueError(f"{path} is writable by everybody: chmod o-w {path}")
            return cls.parse(file.read().decode("utf-8-sig").splitlines(), str(path))

    @classmethod
    def parse(cls, lines: Iterable[str], source: str = VARIABLE) -> APIKeys:
        """Parse lines of a key file; errors name `source`.

        Raises:
            ValueError: naming the invalid line by its number only, because the line may be a key
                that somebody forgot to hash.
        """
        stored: dict[str, StoredKey] = {}
        digests: set[bytes] = set()
        for number, line in enumerate(lines, 1):
            entry = line.partition("#")[0].strip()
            if not entry:
                continue
            where = f"{source}, line {number}"
            name, key = _entry(entry, where)
            if name in stored:
                raise ValueError(f"{where}: a key named {name!r} exists already")
            if key.digest in digests:
                raise ValueError(f"{where}: the key of {name!r} has another name already")
            stored[name] = key
            digests.add(key.digest)
        return cls(stored)

    @property
    def stored(self) -> Mapping[str, StoredKey]:
        """The hashes by name, those of expired keys too."""
        return MappingProxyType(self._stored)

    def __contains__(self, name: object) -> bool:
        """Return whether a key that has not expired has this name."""
        return name in self._stored and not self._stored[name].expired

    def __len__(self) -> int:
        return len(self._stored)

    def __repr__(self) -> str:
        return f"APIKeys({', '.join(self._stored)})"

    def __or__(self, other: APIKeys) -> APIKeys:
        """The keys of both.

        Raises:
            ValueError: both have the same name or key.
        """
        digests = {key.digest for key in self._stored.values()}
        for name, key in other._stored.items():
            if name in self._stored or key.digest in digests:
                raise ValueError(f"the key of {name!r} is in the key file and in {VARIABLE}")
        return APIKeys({**self._stored, **other._stored})

    def tenant(self, presented: str) -> Tenant | None:
        """The tenant of the key `presented`; None for an unknown or expired key."""
        name = self._name(presented)
        return None if name is None or self._stored[name].expired else Tenant("key", name)

    def has_expired(self, presented: str) -> bool:
        """Return whether `presented` is a key that has expired."""
        name = self._name(presented)
        return name is not None and self._stored[name].expired

    def _name(self, presented: str) -> str | None:
        """The name of the key `presented`; None for an unknown key. Takes constant time."""
        digest = _digest(presented)
        found = None
        for name, key in self._stored.items():
            if hmac.compare_digest(digest, key.digest):
                found = name
        return found


def _lock_shared(file: BufferedReader, *, wait: bool) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_SH | (0 if wait else fcntl.LOCK_NB))
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.ENOTSUP):  # of a file system without locks
            raise


def _entry(entry: str, where: str) -> tuple[str, StoredKey]:
    """The name and the key of a line of a key file; ValueError begins with `where`."""
    named_hash, _, rest = entry.partition(_EXPIRES)
    name, _, digits = (part.strip() for part in named_hash.partition(":"))
    if not _KEY_NAME.fullmatch(name) or not _HASH.fullmatch(digits):
        raise ValueError(f"{where}: must be `name:hash`, as `repl-env keys` writes it")
    if not rest:
        return name, StoredKey(bytes.fromhex(digits))
    try:
        expires = datetime.fromisoformat(rest)
    except ValueError:
        expires = None
    if expires is None or expires.tzinfo is None:
        raise ValueError(f"{where}: `{_EXPIRES}` must be a time such as 2030-01-31T12:00:00Z")
    return name, StoredKey(bytes.fromhex(digits), expires)


def time_text(time: datetime) -> str:
    """`time` in UTC, to the second, such as 2030-01-31T12:00:00Z."""
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


# Seconds of the units of a duration.
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_DURATION = re.compile(r"(\d{1,6})([smhdw])")


def expiry_of(text: str) -> datetime | None:
    """The time that `text` means: "never" (None), "now", "30d" from now, or a time of ISO 8601.

    A time without a zone is in UTC.

    Raises:
        ValueError: `text` is none of these.
    """
    if text == "never":
        return None
    if text == "now":
        return datetime.now(UTC)
    if duration := _DURATION.fullmatch(text):
        return datetime.now(UTC) + timedelta(seconds=int(duration[1]) * _UNITS[duration[2]])
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"{text!r} is no time: write now, never, 12h, 30d, 2030-01-31 or 2030-01-31T12:00Z"
        ) from None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


@contextmanager
def named(path: Path) -> Iterator[None]:
    """Raise ValueError, naming the file, if the block reads bytes that are not text."""
    try:
        yield
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not a text file, as `repl-env keys` writes it") from None


def new_key(name: str, expires: datetime | None = None) -> tuple[str, str]:
    """Generate a key for `name`; returns the key and its line for a key file.

    Raises:
        ValueError: `name` is not 1 to 64 letters, digits, dots, dashes and underscores.
    """
    if not _KEY_NAME.fullmatch(name):
        raise ValueError(
            f"a name must be 1 to 64 letters, digits, dots, dashes and underscores, not {name!r}"
        )
    key = _PREFIX + secrets.token_urlsafe(_KEY_BYTES)
    return key, StoredKey(_digest(key), expires).line(name)


def change_file(path: Path, change: Callable[[str], str], *, create: bool = False) -> None:
    """Replace the text of a key file by what `change` makes of it, while nobody else reads it.

    The file stays the same one, because a container may have this file mounted.

    Raises:
        ValueError: the file has an invalid line, before or after; or as `change`.
        OSError: the file cannot be read or written, and stays as it was.
    """
    # The file is the tenant's alone: who can write to it can let anybody in.
    flags = os.O_RDWR | os.O_NONBLOCK | (os.O_CREAT if create else 0)
    fd = os.open(path, flags, 0o600)
    if (refused := refusal(path, os.fstat(fd).st_mode)) is not None:
        os.close(fd)
        raise refused
    with open(fd, "r+b", buffering=0) as file, named(path):
        # Of two concurrent commands, the second sees the name that the first one added.
        fcntl.flock(file, fcntl.LOCK_EX)
        before = file.read()
        text = before.decode("utf-8-sig")
        APIKeys.parse(text.splitlines(), str(path))
        after = change(text)
        APIKeys.parse(after.splitlines(), str(path))
        try:
            _overwrite(file, after.encode())
        except OSError:
            _overwrite(file, before)
            raise


def _overwrite(file: FileIO, content: bytes) -> None:
    file.seek(0)
    done = 0
    while done < len(content):
        done += file.write(content[done:]) or 0
    file.truncate()


def replace_line(text: str, name: str, make: Callable[[StoredKey], str | None]) -> str:
    """`text` of a key file with another line for the key `name`; None: without its line.

    Raises:
        ValueError: no key has this name; the text lists the names.
    """
    lines, replaced = text.splitlines(), False
    for index, line in enumerate(lines):
        found = APIKeys.parse([line]).stored.get(name)
        if found is not None:
            new, (_, mark, comment) = make(found), line.partition("#")
            lines[index : index + 1] = [] if new is None else [f"{new} {mark}{comment}".rstrip()]
            replaced = True
            break
    if not replaced:
        names = ", ".join(APIKeys.parse(lines).stored) or "none"
        raise ValueError(f"no key is named {name!r}; there are: {names}")
    return "".join(f"{line}\n" for line in lines)


def lines_of(value: str) -> list[str]:
    """The lines in the value of the environment variable VARIABLE."""
    return value.replace(",", "\n").splitlines()


def _digest(key: str) -> bytes:
    # A header may contain any bytes, which are decoded to surrogates.
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


# `HostAndPort`: strict parsing of a host and a port (RFC 3986).
#
# `Host`, `Origin`, `X-Forwarded-For` and model endpoints are compared with the operator's
# allowlists. Other programs may parse a text outside the grammar differently, so such a text is
# rejected.

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


# `AllowedOrigins`: the web pages that may send requests.
#
# A page of any site can make a visitor's browser send requests to this server, with the network
# access of that browser: to a server on loopback, that of this machine. Two headers identify such
# requests:
#
# - `Origin`: browsers send it with WebSockets and with all requests except same-origin GETs. Only
#   the server's own origin and the origins that the operator named are accepted.
# - `Host`: a page can make its own name resolve to this machine (DNS rebinding), and its requests
#   are then same-origin, with that name as their `Host`. Without configuration, only addresses and
#   `localhost` are trusted. Every browser sends `Host`, so an HTTP/1.0 request without it
#   (RFC 9112, section 3.2) is not a page's: probes of load balancers look like that. Such a request
#   may only read, because a proxy may have removed the `Host` of a page's request.
#
# A request with a valid key is accepted from any host: browsers never add a key by themselves.

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


# `KeyFile`: the keys of a file that may change while the server runs; the keys of a server.

logger = logging.getLogger("repl_server")

_Version: TypeAlias = tuple[int, int, int, int]


class KeyFile(APIKeys):
    """The keys of a file, read again when the file changed, and further keys that stay.

    A file that cannot be read, or has an invalid line, leaves the keys as they were, with a line in
    the log.

    Raises:
        ValueError, OSError: as `APIKeys.read`.
    """

    __slots__ = ("_further", "_path", "_version")

    def __init__(self, path: Path, further: APIKeys) -> None:
        self._path, self._further = path, further
        self._version = _version(path)
        super().__init__((APIKeys.read(path) | further)._stored)

    def __contains__(self, name: object) -> bool:
        self._refresh()
        return super().__contains__(name)

    def __len__(self) -> int:
        self._refresh()
        return super().__len__()

    def _name(self, presented: str) -> str | None:
        self._refresh()
        return super()._name(presented)

    def _refresh(self) -> None:
        version = _version(self._path)
        if version == self._version:
            return
        try:
            self._stored = (APIKeys.read(self._path, wait=False) | self._further)._stored
        except BlockingIOError:
            return  # a command changes it now; the next request finds it changed
        except (OSError, ValueError) as error:
            logger.warning("the key file cannot be read again, and its keys stay: %s", error)
        else:
            logger.info("the key file was read again: %d keys", len(self._stored))
        self._version = version


def configured_keys(settings: Settings) -> APIKeys:
    """Return the keys of a server: of its key file, as long as it runs, and of the environment.

    Raises:
        ValueError, OSError: as `APIKeys.read` and `APIKeys.parse`.
    """
    further = APIKeys.parse(settings.hashed_keys)
    if settings.api_keys is None:
        return further
    try:
        return KeyFile(settings.api_keys, further)
    except ValueError as error:
        raise ValueError(f"api_keys: {error}") from None


def _version(path: Path) -> _Version:
    """A value that differs between two states of the file; one value for all missing files."""
    try:
        status = os.stat(path)
    except OSError:
        return (0, 0, 0, 0)
    return status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size


# `TrustedProxies`: the client address of requests that come through proxies.
#
# Any client can send `X-Forwarded-For` and `X-Forwarded-Proto`, so these headers are used only in
# requests from proxies that the operator named.

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


# `Authenticator`: the tenant of a request, by API key or address.


class Authenticator:
    """Authenticates requests.

    A server requires keys if it has any, or listens beyond loopback, unless `Settings.no_auth` is
    set. With `no_auth`, a request may still present a key and acts as its tenant.

    Raises:
        ValueError: keys are required and none exist; `metrics_key` names no key; an origin or a
            proxy is invalid.
    """

    def __init__(self, settings: Settings, keys: APIKeys) -> None:
        loopback = is_loopback(settings.host)
        self._keys = keys
        self._proxies = TrustedProxies(settings.trusted_proxies)
        self.origins = AllowedOrigins(settings.origins, loopback=loopback)
        given = settings.api_keys is not None or bool(settings.hashed_keys) or bool(keys)
        self.requires_keys = not settings.no_auth and (given or not loopback)
        if settings.metrics_key is not None and settings.metrics_key not in keys:
            raise ValueError(f"metrics_key: no key has the name {settings.metrics_key!r}")
        if self.requires_keys and not keys:
            raise ValueError(
                f"host: without keys, every client that reaches {settings.host!r} could run code:"
                " create a key with `repl-env keys NAME --file FILE` and set api_keys to that file,"
                " or set no_auth"
            )

    def authenticate(self, scope: Any, *, public: bool = False) -> Tenant:
        """The tenant of an ASGI request.

        `public`: the response is the same for everybody, so no key is needed, and none is read: a
        proxy may have added credentials of its own.

        Raises:
            RequestError: UNAUTHENTICATED, FORBIDDEN.
        """
        headers = _headers(scope["headers"])
        key = _presented(headers) if self._keys and not public else None
        keyed = key is not None
        if public and self.requires_keys:
            keyed = True  # nothing that a page of another name could not read elsewhere
        elif key is None and self.requires_keys:
            raise RequestError(
                "UNAUTHENTICATED", "an API key is required: Authorization: Bearer KEY"
            )
        tenant = self.address_tenant(scope)
        if key is not None:
            found = self._keys.tenant(key)
            if found is None:
                expired = self._keys.has_expired(key)
                about = "the API key has expired" if expired else "unknown API key"
                raise RequestError("UNAUTHENTICATED", about)
            tenant = found
        scheme, hostless = self._proxies.scheme(scope), needs_no_host(scope)
        self.origins.check(headers, scheme, keyed=keyed, hostless=hostless)
        return tenant

    def address_tenant(self, scope: Any) -> Tenant:
        """The tenant that the request has without a key."""
        return Tenant("address", client_network(self._proxies.client(scope)))


def _headers(pairs: Iterable[tuple[bytes, bytes]]) -> dict[str, list[str]]:
    headers: dict[str, list[str]] = {}
    for name, value in pairs:
        headers.setdefault(name.decode("latin-1"), []).append(value.decode("latin-1"))
    return headers


def _password(token: str) -> str:
    """The password of HTTP Basic credentials; "" if they are malformed."""
    try:
        return base64.b64decode(token, validate=True).decode("latin-1").partition(":")[2]
    except ValueError:  # not base64, or not ASCII
        return ""


# Basic serves clients that accept a URL but no headers, such as OpenEnv's up to 0.4.1.
_KEY_OF_SCHEME: Mapping[str, Callable[[str], str]] = {"bearer": str, "basic": _password}
# Prefix of a WebSocket subprotocol that carries a key as base64url without padding: pages of a
# browser cannot set other headers of a WebSocket, and a key in a URL would be logged by proxies.
_KEY_PROTOCOL = "repl-env.key."


def _presented(headers: dict[str, list[str]]) -> str | None:
    """The key in a request.

    `X-API-Key` wins, and then a subprotocol: a proxy may use `Authorization` for itself.
    """
    values = (
        headers.get("x-api-key")
        or _of_subprotocols(headers.get("sec-websocket-protocol", ()))
        or _of_authorization(headers.get("authorization", ()))
    )
    if len(values) > 1:
        raise RequestError("UNAUTHENTICATED", "the request has more than one API key")
    return values[0] if values else None


def _of_authorization(lines: Iterable[str]) -> list[str]:
    pairs = [line.strip().partition(" ")[::2] for line in lines]
    return [
        _KEY_OF_SCHEME[scheme.lower()](token.strip())
        for scheme, token in pairs
        if scheme.lower() in _KEY_OF_SCHEME
    ]


def _of_subprotocols(lines: Iterable[str]) -> list[str]:
    names = [name.strip() for line in lines for name in line.split(",")]
    return [
        _decoded(name.removeprefix(_KEY_PROTOCOL))
        for name in names
        if name.startswith(_KEY_PROTOCOL)
    ]


def _decoded(token: str) -> str:
    """The text that `token` encodes as base64url without padding; "" if it is malformed."""
    try:
        return base64.b64decode(token + "=" * (-len(token) % 4), b"-_", validate=True).decode()
    except ValueError:  # not base64, or not UTF-8
        return ""
