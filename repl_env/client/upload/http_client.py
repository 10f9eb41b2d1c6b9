"""`HttpConnection`: blocking HTTP requests to one server on one connection."""

from __future__ import annotations

import base64
import http.client
import io
import math
import socket
import ssl
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

from repl_env.client.connection.server_address import ServerAccess
from repl_env.common.closeable import Closeable
from repl_env.errors import NotSupported, ServerUnavailable

# Environment variables of proxies, in order, as in websockets: both connections use one proxy.
_PROXIES = {True: ("wss", "socks", "https"), False: ("ws", "socks", "https", "http")}
# Answers to uploads are a line of JSON; longer answers are not from this server.
_MAX_BYTES = 1 << 16
# Bytes that a stream is read in.
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """A response. The names of `headers` are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class _Response(http.client.HTTPResponse):
    """A response with an end: http.client itself reads some parts for as long as they arrive."""

    def __init__(self, sock: socket.socket, *given: Any, **named: Any) -> None:
        super().__init__(sock, *given, **named)
        self.bounded = _Bounded(self.fp.detach(), sock.gettimeout())
        self.fp = io.BufferedReader(self.bounded)


class _Bounded(io.RawIOBase):
    """Data that arrives within `timeout_s`, up to `_MAX_BYTES` for the headers and for the
    body.
    """

    def __init__(self, stream: io.RawIOBase, timeout_s: float | None) -> None:
        self._stream = stream
        self._left: float = 2 * _MAX_BYTES
        self._until = math.inf if timeout_s is None else time.monotonic() + timeout_s

    def unbound(self) -> None:
        """Bound each wait for data alone, and no longer all of the body."""
        self._left, self._until = math.inf, math.inf

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        if self._left <= 0 or time.monotonic() > self._until:
            raise http.client.HTTPException("it does not end")
        count = self._stream.readinto(buffer)
        self._left -= count or 0
        return count

    def close(self) -> None:
        self._stream.close()
        super().close()


class HttpStream:
    """A response whose body is read piece by piece. The names of `headers` are in lower case."""

    def __init__(
        self, answer: _Response, reporting: Callable[[], AbstractContextManager[None]]
    ) -> None:
        self._answer, self._reporting = answer, reporting
        self.status = answer.status
        self.headers = {name.lower(): value for name, value in answer.headers.items()}

    @property
    def size(self) -> int | None:
        """The bytes of the body; None if the server has not said."""
        return self._answer.length

    def text(self) -> bytes:
        """Return the body of an error."""
        with self._reporting():
            return self._answer.read(_MAX_BYTES)

    def chunks(self) -> Iterator[bytes]:
        """Yield the body.

        Raises:
            ServerUnavailable: the connection broke before the end, or nothing came in time.
        """
        self._answer.bounded.unbound()
        while True:
            with self._reporting():
                chunk = self._answer.read(_CHUNK)
                if not chunk and self._answer.length:
                    raise http.client.HTTPException("the body is incomplete")
            if not chunk:
                return
            yield chunk


class HttpConnection(Closeable):
    """One connection, opened on first use, and again after it broke."""

    def __init__(self, access: ServerAccess, timeout_s: float) -> None:
        self._access = access
        self._timeout_s = timeout_s
        self._open: http.client.HTTPConnection | None = None
        self._closed = False

    def request(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]
    ) -> HttpResponse:
        """Send one request and return the response, whatever its status; redirects are not
        followed.

        Raises:
            ServerUnavailable: the connection cannot be opened, or broke.
        """
        with self._reporting(method):
            return self._send_request(self._connected(), method, path, body, headers)

    @contextmanager
    def stream(
        self, method: str, path: str, body: Iterable[bytes] | None, headers: Mapping[str, str]
    ) -> Iterator[HttpStream]:
        """As `request`, with a body and a response of any length; the connection is then closed."""
        reporting = partial(self._reporting, method)
        try:
            with reporting():
                answer = self._sent(self._connected(), method, path, body, headers)
            yield HttpStream(answer, reporting)
        finally:
            self._drop()

    @contextmanager
    def _reporting(self, method: str) -> Iterator[None]:
        """Turn errors of the connection into ServerUnavailable."""
        try:
            yield
        except (OSError, http.client.HTTPException, ValueError) as error:
            # ValueError: a chunk of negative size. Without a cause: it may repeat a header.
            self._drop()
            message = self._access.secrets.cut(str(error) or type(error).__name__)
            address = self._access.address
            raise ServerUnavailable(f"no answer from {address} to {method}: {message}") from None

    def close(self) -> None:
        """Close the connection for good, even during a request of another thread."""
        self._closed = True
        sock = None if self._open is None else self._open.sock
        if sock is not None:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)  # this ends a thread's wait; `close` does not
        self._drop()

    def _send_request(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        path: str,
        body: bytes | None,
        headers: Mapping[str, str],
    ) -> HttpResponse:
        answer = self._sent(connection, method, path, body, headers)
        headers = {name.lower(): value for name, value in answer.headers.items()}
        found = HttpResponse(answer.status, headers, answer.read(_MAX_BYTES))
        if not answer.isclosed() or answer.will_close:
            self._drop()
        return found

    def _sent(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        path: str,
        body: Iterable[bytes] | bytes | None,
        headers: Mapping[str, str],
    ) -> _Response:
        url = self._access.address.path + path
        # A server that refuses after the headers closes while the body is still being sent; its
        # response can still be read.
        with suppress(BrokenPipeError, ConnectionResetError):
            connection.request(method, url, body, {**self._access.headers, **headers})
        answer = connection.getresponse()
        assert isinstance(answer, _Response)
        return answer

    def _connected(self) -> http.client.HTTPConnection:
        if self._open is not None:
            return self._open
        connection = self._open = self._connection()
        connection.connect()
        if self._closed:  # closed meanwhile, before there was a socket
            connection.close()
            raise http.client.NotConnected
        return connection

    def _drop(self) -> None:
        connection, self._open = self._open, None
        if connection is not None:
            connection.close()

    def _connection(self) -> http.client.HTTPConnection:
        address = self._access.address
        proxy = None if address.loopback else proxy_for(address.secure, address.host, address.port)
        host, port = (address.host, address.port) if proxy is None else _host_and_port(proxy)
        connection: http.client.HTTPConnection
        if address.secure:
            tls = self._access.tls or ssl.create_default_context()
            connection = http.client.HTTPSConnection(
                host, port, timeout=self._timeout_s, context=tls
            )
        else:
            connection = http.client.HTTPConnection(host, port, timeout=self._timeout_s)
        connection.response_class = _Response
        if proxy is not None:
            connection.set_tunnel(address.host, address.port, _login(proxy))
        return connection


def proxy_for(secure: bool, host: str, port: int) -> SplitResult | None:
    """Return the proxy that the environment or the system names for a server, as websockets does.

    Raises:
        NotSupported: it is a SOCKS or TLS proxy, which this HTTP client lacks, or an invalid URL.
    """
    if urllib.request.proxy_bypass(f"{host}:{port}"):
        return None
    proxies = urllib.request.getproxies()
    url = next((proxies[scheme] for scheme in _PROXIES[secure] if scheme in proxies), None)
    if url is None:
        return None
    try:
        proxy = urlsplit(url)
        known = proxy.scheme == "http" and bool(proxy.hostname) and proxy.port != 0
    except ValueError:  # the text in place of the port may be a password
        known = False
    if not known:
        raise NotSupported("large contexts go by HTTP, through http:// proxies only", code="PROXY")
    return proxy


def _host_and_port(proxy: SplitResult) -> tuple[str, int]:
    return str(proxy.hostname), proxy.port or 80


def _login(proxy: SplitResult) -> dict[str, str]:
    if proxy.username is None:
        return {}
    login = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}".encode()
    return {"Proxy-Authorization": "Basic " + base64.b64encode(login).decode()}
