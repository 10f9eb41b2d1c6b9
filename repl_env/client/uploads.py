"""Uploads of contexts, which go on after a lost connection; blocking HTTP for them."""

from __future__ import annotations

import asyncio
import base64
import http.client
import io
import json
import math
import os
import socket
import ssl
import threading
import time
import urllib.request
from collections.abc import Awaitable, Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from inspect import isawaitable
from typing import Any, TypeAlias
from urllib.parse import SplitResult, unquote, urlsplit

from repl_env.client import protocol
from repl_env.client.address import ServerAccess, pause
from repl_env.client.requests import Read, UploadBody
from repl_env.common.display import Closeable
from repl_env.errors import NotSupported, ServerError, ServerUnavailable

# `HttpConnection`: blocking HTTP requests to one server on one connection.

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


# `SingleFlight`: one client of a process does the work that many request at the same time.


class SingleFlight:
    """Work by name. Threads and event loops share it; a fork starts without work in progress."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._in_progress: dict[Hashable, Future[bool]] = {}

    async def once(self, name: Hashable, work: Callable[[], Awaitable[None]]) -> None:
        """Do `work`, or wait for another caller that does it.

        Raises:
            Exception: raised by `work`. A caller that waited for a failed attempt tries for itself.
        """
        if self._process != os.getpid():
            self._begin()  # the worker is not in this process
        while True:
            with self._lock:
                other = self._in_progress.get(name)
                if other is None:
                    future = self._in_progress[name] = Future[bool]()
                    break
            # A caller that is cancelled while it waits leaves the worker running.
            if await asyncio.shield(asyncio.wrap_future(other)):
                return
        done = False
        try:
            await work()
            done = True
        finally:
            with self._lock:
                del self._in_progress[name]
            future.set_result(done)


# Uploads of contexts with `PUT /contexts/{sha256}`, from the first byte that the server lacks.

# Called with the bytes sent and the bytes in total; may be asynchronous.
OnUpload: TypeAlias = Callable[[int, int], object]

# Bytes of one request. The server keeps the received part of a broken request, but a proxy that
# buffers bodies does not, and may limit their size and time: after a failure, requests get smaller.
CHUNK, MIN_CHUNK = 16 << 20, 256 << 10
# Without an answer, and without an accepted byte.
REQUEST_TIMEOUT_S = 60.0
# A server that asks for a longer pause counts as away.
MAX_RETRY_AFTER_S = 120.0
# Consecutive attempts at one piece.
MAX_ATTEMPTS = 6


# Many clients of a process may begin with one context, at the same time.
_UPLOADS = SingleFlight()


async def upload(
    bodies: Sequence[UploadBody],
    access: ServerAccess,
    *,
    max_chunk: int | None = None,
    on_upload: OnUpload | None = None,
) -> None:
    """Upload all of `bodies`, except for those that the server already holds.

    Raises:
        TooLarge, QuotaExceeded, AuthenticationFailed: refusals of the server.
        ServerUnavailable: the server could not be reached several times in a row.
        ServerError: the bytes have another hash, for example of a file that is being written.
    """
    progress = _Progress(sum(body.size for body in bodies), on_upload)
    await progress.report(0)
    connection = HttpConnection(access, REQUEST_TIMEOUT_S)
    try:
        for body in bodies:
            this_upload = _Upload(body, access, connection, min(max_chunk or CHUNK, CHUNK))
            await _UPLOADS.once(_name(access, body), partial(this_upload.run, progress.report))
            await progress.add(body.size)
    finally:
        connection.close()


class _Progress:
    """The progress of all uploads together."""

    def __init__(self, total: int, on_upload: OnUpload | None) -> None:
        self._total, self._on_upload = total, on_upload
        self._reported: int | None = None
        self.done = 0

    async def add(self, size: int) -> None:
        """Record that the present upload, of `size` bytes, is complete, by any sender."""
        await self.report(size)
        self.done += size

    async def report(self, received: int) -> None:
        """Record that `received` bytes of the present upload have arrived."""
        sent, reported = self.done + received, self._reported
        self._reported = sent
        if self._on_upload is not None and sent != reported:
            returned = self._on_upload(sent, self._total)
            if isawaitable(returned):
                await returned


class _Upload:
    """One upload."""

    def __init__(
        self, body: UploadBody, access: ServerAccess, connection: HttpConnection, chunk: int
    ) -> None:
        self._body, self._access, self._connection = body, access, connection
        self._path = f"/contexts/{body.sha256}"
        self._read: Read | None = None
        self._chunk_size = chunk
        self._sole_sender = True  # all bytes on the server were sent by this process

    async def run(self, report: Callable[[int], Awaitable[None]]) -> None:
        """Ask for the received bytes, and send the rest."""
        received = await self._with_retries(self._received)
        self._sole_sender = received == 0
        try:
            await self._send_from(received, report)
        except ServerError as error:
            if error.code != "CHANGED" or self._sole_sender:
                raise
            # Another sender's bytes were wrong, and the server has dropped all of them.
            await self._send_from(0, report)

    async def _send_from(self, received: int, report: Callable[[int], Awaitable[None]]) -> None:
        furthest, idle = 0, 0
        while received < self._body.size:
            await report(received)
            previous, received = received, await self._with_retries(partial(self._send, received))
            if received > furthest:
                furthest, idle = received, 0
            elif received <= previous:
                idle += 1
            if idle == MAX_ATTEMPTS:
                raise ServerUnavailable(f"pieces of {self._body.name} do not arrive")

    async def _with_retries(self, attempt: Callable[[], Awaitable[int]]) -> int:
        """Return the result of `attempt`, or the server's state after a failure."""
        for number in range(1, MAX_ATTEMPTS):
            try:
                return await attempt()
            except ServerUnavailable as error:
                self._chunk_size = max(MIN_CHUNK, self._chunk_size // 2)
                asked_for = error.retry_after or 0.0
                if asked_for > MAX_RETRY_AFTER_S:
                    raise
                await asyncio.sleep(max(pause(number), asked_for))
                attempt = self._received
        return await attempt()

    async def _received(self) -> int:
        """Return the number of bytes that the server has."""
        answer = await self._ask("HEAD")
        if answer.status == 200:
            return self._body.size
        if answer.status == 404:
            return self._incomplete(answer.headers.get("upload-offset", "0"))
        raise self._refused(answer)

    async def _send(self, offset: int) -> int:
        """Send the piece from `offset` on; return the number of bytes that the server then has."""
        body = self._body
        if self._read is None:
            self._read = await asyncio.to_thread(body.open)
        chunk = await asyncio.to_thread(self._read, offset, self._chunk_size)
        if not chunk:
            raise _changed(body.name)
        content_range = f"bytes {offset}-{offset + len(chunk) - 1}/{body.size}"
        answer = await self._ask("PUT", chunk, {"Content-Range": content_range})
        match answer.status:
            case 200 | 201:
                return body.size
            case 202 | 409:
                self._sole_sender = self._sole_sender and answer.status == 202
                return self._incomplete(_body(answer).get("received"))
            case 422:
                raise _changed(body.name)
        raise self._refused(answer)

    def _incomplete(self, count: Any) -> int:
        """Return the number of bytes of an incomplete context, as the server reports it.

        A server with all bytes may not have checked them yet: the last byte is sent again, and the
        answer reports the check.
        """
        return min(_count(count), self._body.size - 1)

    async def _ask(
        self, method: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> HttpResponse:
        ask = partial(self._connection.request, method, self._path, body, headers or {})
        return await asyncio.to_thread(ask)

    def _refused(self, answer: HttpResponse) -> Exception:
        return protocol.error_of_status(
            answer.status, answer.headers, answer.body, self._access.secrets
        )


def _changed(name: str) -> ServerError:
    """Return the error for bytes that do not match their hash, as of a file that is being
    written.
    """
    return ServerError(f"{name} has changed while it was sent", code="CHANGED")


def _name(access: ServerAccess, body: UploadBody) -> Hashable:
    """Return a key that is equal for clients that send the same to the same server as the same
    owner.
    """
    return str(access.address), tuple(sorted(access.headers.items())), body.sha256


def _count(value: Any) -> int:
    try:
        count = int(value)
    except (TypeError, ValueError, OverflowError):
        count = -1
    if count < 0:
        raise ServerError("the server does not say how much of a context it has", code="BAD_REPLY")
    return count


def _body(answer: HttpResponse) -> dict[str, Any]:
    try:
        data = json.loads(answer.body)
    except (ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}
