"""`RequestGuard`: ASGI middleware that authenticates, limits, logs and counts every request.

The guard does not buffer: chunks of a body and of a response pass through as they arrive.
"""

from __future__ import annotations

import asyncio
import re
from asyncio import sleep
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final, NoReturn

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .auth import Authenticator
from .connections import LARGE_BODY, LINGER_S, ReceiveBuffers, receive_timeout
from .protocol import validation_error
from .quotas import QuotaRegistry, TokenBucket, UsageMeter
from .settings import Settings
from .telemetry import Telemetry
from .tenants import RequestError, Tenant, http_response

# `BrowserHeaders`: ASGI middleware that adds security headers for browsers.
#
# The headers forbid other sites to show a response in a frame (clickjacking), except sites that
# the operator named, and forbid browsers to guess the type of a response.

Headers = list[tuple[bytes, bytes]]

# A scheme and host source of CSP; contains no character that could end the directive.
_SITE = re.compile(r"https?://(\*\.)?[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:[0-9]{1,5})?")
_NOBODY = "'none'"


class BrowserHeaders:
    """Adds `headers` to every response of `app`."""

    def __init__(self, app: ASGIApp, headers: Headers) -> None:
        self._app = app
        self._headers = headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle an ASGI scope."""

        async def send_headed(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *self._headers]}
            await send(message)

        await self._app(scope, receive, send_headed if scope["type"] == "http" else send)


def page_headers(frame_ancestors: Sequence[str]) -> Headers:
    """The headers of a server whose responses these sites may show in frames.

    Raises:
        ValueError: a text is not a site such as https://example.org or https://*.example.org.
    """
    sites = [_site(frame_ancestor) for frame_ancestor in frame_ancestors]
    headers = [
        (b"content-security-policy", f"frame-ancestors {' '.join(sites or [_NOBODY])}".encode()),
        (b"x-content-type-options", b"nosniff"),
        (b"referrer-policy", b"no-referrer"),
    ]
    if not sites:  # for browsers without CSP; this header cannot name a site
        headers.append((b"x-frame-options", b"DENY"))
    return headers


def _site(text: str) -> str:
    site = text.rstrip("/")
    if _SITE.fullmatch(site) is None:
        raise ValueError(
            f"frame_ancestors: {text!r} is not a site of web pages, such as https://example.org"
        )
    return site


# `RequestBody`: reads the body of one HTTP request within limits of size and time.

# Uploads, of contexts and of files, are stored while they arrive, within limits of their own.
_CONTEXTS, _FILES = "/contexts/", "/files/"


class RequestBody:
    """The body of a request as the application receives it (ASGI's `receive`).

    A body that is announced as too large is refused before any of it is read. Received bytes are
    accounted to `tenant` until the body is released.

    Attributes:
        upload: the body is an upload, which the upload store accounts for.
        count: bytes received.
    """

    def __init__(
        self, scope: Scope, receive: Receive, settings: Settings, inbound: ReceiveBuffers
    ) -> None:
        self._receive = receive
        self._inbound = inbound
        self.tenant: Tenant | None = None
        self.upload = scope["method"] == "PUT" and scope["path"].startswith((_CONTEXTS, _FILES))
        self._limit = settings.largest_message
        if self.upload:
            whole = scope["path"].startswith(_CONTEXTS)
            self._limit = settings.context_bytes if whole else int(settings.limits.file_size)
        self._seconds = settings.body_s
        self._began = asyncio.get_running_loop().time()
        self._announced = announced(scope)
        self._coding = _coding(scope)
        self.count = self._accounted = 0
        self.whole = self._announced == 0
        self.refusal: RequestError | None = None
        self._waiting: asyncio.Timeout | None = None
        self._turn: asyncio.Semaphore | None = None  # held, or waited for
        self._has_turn = False

    def begin(self, tenant: Tenant) -> None:
        """Account for the body under `tenant`, until it is released."""
        self.tenant = tenant
        self._inbound.begin(self)

    def check(self) -> None:
        """Reject a body whose headers announce too many bytes, or a compression.

        Raises:
            RequestError: TOO_LARGE; VALIDATION_ERROR.
        """
        if self._coding is not None and self._announced != 0:
            header, name = self._coding
            message = f"{name[:100]!r} is not supported: send bodies uncompressed"
            raise validation_error(f"header.{header}", message)
        if self._announced is not None and self._announced > self._limit:
            self._refuse_size()

    async def receive(self) -> Message:
        """The next chunk of the body.

        Raises:
            RequestError: TOO_LARGE, TOO_SLOW, RATE_LIMITED, or the error of `abort`; later calls
                raise it again.
        """
        if self.refusal is not None:
            raise self.refusal
        if self.whole:
            return await self._receive()
        if not self._has_turn and not self.upload:
            await self._take_turn()
        try:
            due = self._began + receive_timeout(self._seconds, self.count)
            async with asyncio.timeout_at(due) as self._waiting:
                message = await self._receive()
        except TimeoutError:
            if self.refusal is not None:
                raise self.refusal from None
            self._refuse("TOO_SLOW", "The body did not come in time.")
        finally:
            self._waiting = None
        if message["type"] == "http.request":
            self._take(len(message.get("body", b"")))
            self.whole = not message.get("more_body", False)
        else:
            self.whole = True
        return message

    def abort(self, refusal: RequestError) -> None:
        """Fail with `refusal` unless the body is complete; wakes a waiting `receive`."""
        if self.whole or self.refusal is not None:
            return
        self.refusal = refusal
        if self._waiting is not None and not self._waiting.expired():
            self._waiting.reschedule(asyncio.get_running_loop().time())

    async def drain(self, seconds: float) -> None:
        """Read and discard the rest for a while: a client that still sends reads no response."""
        try:
            async with asyncio.timeout(seconds):
                while not self.whole:
                    message = await self._receive()
                    self.whole = not message.get("more_body", False)
        except TimeoutError:
            pass

    def release(self) -> None:
        """Release the memory of the body: the request is over."""
        self._inbound.done(self)
        if self._has_turn and self._turn is not None:
            self._turn.release()
            self._has_turn = False
        if self._accounted:
            self._inbound.adjust(self.tenant, -self._accounted)
            self._accounted = 0

    async def _take_turn(self) -> None:
        """Wait until few other large bodies of this client are held; the time counts for none.

        The client is not read meanwhile, so that its body stays where it is.
        """
        if max(self._announced or 0, self.count) <= LARGE_BODY:
            return
        self._turn = self._inbound.large_bodies(self.tenant)
        began = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(None) as self._waiting:
                await self._turn.acquire()
        except TimeoutError:
            if self.refusal is not None:
                raise self.refusal from None
            raise
        finally:
            self._waiting = None
        self._has_turn = True
        self._began += asyncio.get_running_loop().time() - began

    def _take(self, count: int) -> None:
        self.count += count
        if self.count > self._limit:
            self._refuse_size()
        if self.upload:
            return
        if not self._inbound.adjust(self.tenant, count):
            self._refuse("RATE_LIMITED", "Too much is being received.", retry_after=1.0)
        self._accounted += count

    def _refuse_size(self) -> NoReturn:
        more = "" if self.upload else "; larger contexts can be uploaded"
        self._refuse("TOO_LARGE", f"the limit is {self._limit} bytes{more}", limit=self._limit)

    def _refuse(self, code: str, message: str, **more: Any) -> NoReturn:
        self.refusal = RequestError(code, message, **more)
        raise self.refusal


# Headers that name the coding of a body, and the values that leave the body unchanged.
_PLAIN = {
    b"content-encoding": ("Content-Encoding", frozenset({"", "identity"})),
    b"transfer-encoding": ("Transfer-Encoding", frozenset({"chunked"})),
}


def _coding(scope: Scope) -> tuple[str, str] | None:
    """The header that announces a compressed body, and its value; None without one."""
    for name, value in scope["headers"]:
        if name in _PLAIN:
            header, plain = _PLAIN[name]
            encoding = value.decode("latin-1").strip().lower()
            if encoding not in plain:
                return header, encoding
    return None


def announced(scope: Scope) -> int | None:
    """The announced size of the body; None if unknown."""
    length: int | None = 0
    for name, value in scope["headers"]:
        if name == b"content-length":
            # The parser accepts digits only, but any number of leading zeros.
            return int(value.lstrip(b"0") or b"0")
        if name == b"transfer-encoding":
            length = None
    return length


# The pace of requests: who begins in which turn of the event loop, and who is answered late.
#
# A hundred connections with requests that are ready would otherwise begin a hundred requests in
# one turn, and each other client would wait for all of them at each hop of its step.

# Refusals of one address for want of a key that are answered at once: burst, and rate per second.
# A program with a wrong key, or a page, asks a few times.
BURST, _RATE = 20, 1
# Seconds that further ones take. The connection counts meanwhile, so an address has few of them.
_DELAY: Final = 1.0
# Addresses that are remembered, the latest: an older one begins again.
_MAX_ADDRESSES = 4096


class RequestTurns:
    """Lets one request begin in each turn of the event loop, of each address in rotation."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[Hashable, deque[asyncio.Future[None]]] = OrderedDict()
        self._ticking = False

    async def wait(self, scope: Scope) -> None:
        """Wait for the turn of the request of `scope`; none if no other request begins now."""
        loop = asyncio.get_running_loop()
        if not self._ticking:
            self._ticking = True
            loop.call_soon(self._tick)
            return
        address = (scope.get("client") or ("",))[0]
        turn: asyncio.Future[None] = loop.create_future()
        self._waiting.setdefault(address, deque()).append(turn)
        await turn

    def _tick(self) -> None:
        while self._waiting:
            address, turns = self._waiting.popitem(last=False)
            turn = turns.popleft()
            if turns:
                self._waiting[address] = turns
            if not turn.done():  # its client may have left
                turn.set_result(None)
                asyncio.get_running_loop().call_soon(self._tick)
                return
        self._ticking = False


class UnknownKeys:
    """Delays the refusals of an address that goes on to ask without a key or with unknown ones."""

    def __init__(self) -> None:
        self._buckets: OrderedDict[Tenant, TokenBucket] = OrderedDict()

    async def wait(self, address: Tenant) -> None:
        """Wait before a refusal of `address`: not for the first ones, then for a second."""
        bucket = self._buckets.pop(address, None)
        if bucket is None:
            bucket = TokenBucket(BURST, _RATE, asyncio.get_running_loop().time)
        self._buckets[address] = bucket
        if len(self._buckets) > _MAX_ADDRESSES:
            self._buckets.popitem(last=False)
        if bucket.take(1) > 0:
            await sleep(_DELAY)


# Served without a key, for probes: the responses say only whether the process runs or stops.
OPEN = frozenset((method, path) for method in ("GET", "HEAD") for path in ("/health", "/accepting"))
# Requests of monitors, which come every few seconds: the log has their refusals only.
_SCRAPES = frozenset({"/metrics", "/ready"})
# The status of a WebSocket that was opened: 101 Switching Protocols.
_SWITCHED = 101
# Closes connections of refused and of unauthenticated requests.
_CLOSE = (b"connection", b"close")


@dataclass(frozen=True, slots=True)
class GuardContext:
    """The services that the guard uses, shared by all requests of one server."""

    settings: Settings
    authenticator: Authenticator
    quotas: QuotaRegistry
    inbound: ReceiveBuffers
    telemetry: Telemetry


def _never(scope: Scope) -> bool:
    return False


class RequestGuard:
    """Passes requests to `app`, with their `tenant` and `meter` in `scope["state"]`.

    `is_public`: whether a request needs no key, because its response is the same for everybody.
    """

    def __init__(
        self,
        app: ASGIApp,
        context: GuardContext,
        is_public: Callable[[Scope], bool] = _never,
    ) -> None:
        self._app = app
        self._context = context
        self._is_public = is_public
        self._turns, self._strangers = RequestTurns(), UnknownKeys()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle an ASGI scope."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        await self._turns.wait(scope)
        if scope["type"] == "http" and (scope["method"], scope["path"]) in OPEN:
            await self._app(scope, receive, _closing(send))
        else:
            await self._guard(HTTPExchange(scope, receive, send, self._context), scope)

    async def _guard(self, exchange: HTTPExchange, scope: Scope) -> None:
        try:
            tenant, meter = self._admit(scope)
        except RequestError as refusal:
            if refusal.code == "UNAUTHENTICATED":
                await self._strangers.wait(self._context.authenticator.address_tenant(scope))
            await exchange.refuse(refusal)
            return
        scope.setdefault("state", {}).update(tenant=tenant, meter=meter)
        try:
            await exchange.run(self._app, tenant)
        finally:
            meter.close_connection()

    def _admit(self, scope: Scope) -> tuple[Tenant, UsageMeter]:
        authenticator, quotas = self._context.authenticator, self._context.quotas
        try:
            tenant = authenticator.authenticate(scope, public=self._is_public(scope))
        except RequestError:
            # Counts unauthenticated and cross-site requests under the client's address.
            quotas.meter_of(authenticator.address_tenant(scope)).request()
            raise
        meter = quotas.meter_of(tenant)
        meter.request()
        meter.open_connection()
        return tenant, meter


class HTTPExchange:
    """One request, and its response or error."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, context: GuardContext) -> None:
        self._scope = scope
        self._receive = receive
        self._send = send
        self._telemetry = context.telemetry
        self._authenticator = context.authenticator
        self._began = monotonic()
        self._status: int | None = None
        self._tenant: Tenant | None = None
        self._body: RequestBody | None = None
        if scope["type"] == "http":
            self._body = RequestBody(scope, receive, context.settings, context.inbound)

    async def run(self, app: ASGIApp, tenant: Tenant) -> None:
        """Let `app` respond."""
        self._tenant = tenant
        try:
            if self._body is None:
                await app(self._scope, self._receive, self._send)
                self._record_noted()
                self._status = self._status or _SWITCHED
            else:
                self._body.begin(tenant)
                await self._run(app, self._body)
        except ClientDisconnect:
            pass  # while its body was read: nobody waits for a response
        except Exception as error:  # noqa: BLE001 (boundary: an error of the server itself)
            await self._fail(error)
        self._record_request()

    async def _run(self, app: ASGIApp, body: RequestBody) -> None:
        try:
            body.check()
            await app(self._scope, body.receive, self._pass_on)
        except RequestError as refusal:
            body.refusal = body.refusal or refusal
        finally:
            body.release()
            if body.upload:
                self._telemetry.metrics.uploaded(body.count)
        if body.refusal is not None:
            await self.refuse(body.refusal)
        else:
            self._record_noted()

    async def _pass_on(self, message: Message) -> None:
        # The body was refused, so the response is the error, whatever the application sends.
        if self._body is not None and self._body.refusal is not None and self._status is None:
            return
        if message["type"] == "http.response.start":
            self._status = message["status"]
        await self._send(message)

    async def refuse(self, refusal: RequestError) -> None:
        """Respond with the error, unless a response has started."""
        self._record_refusal(refusal)
        # The ASGI server closes the connection of an incomplete response.
        if self._status is None:
            self._status = refusal.status
            refuse = self._refuse_socket if self._body is None else self._refuse_http
            await refuse(refusal)

    async def _fail(self, error: Exception) -> None:
        refusal = RequestError("SESSION_ERROR", "the server failed; the id identifies the log line")
        self._telemetry.event_log.record_fault(error, id=refusal.id)
        try:
            await self.refuse(refusal)
        except RuntimeError:
            # The socket was accepted or closed already.
            with suppress(RuntimeError, OSError):
                await self._send({"type": "websocket.close", "code": refusal.close})

    async def _refuse_http(self, refusal: RequestError) -> None:
        headers, text = http_response(refusal)
        start = {"type": "http.response.start", "status": refusal.status}
        await self._send({**start, "headers": [*headers, _CLOSE]})
        await self._send({"type": "http.response.body", "body": text, "more_body": True})
        if self._body is not None:
            await self._body.drain(LINGER_S)
        await self._send({"type": "http.response.body", "body": b""})

    async def _refuse_socket(self, refusal: RequestError) -> None:
        if "websocket.http.response" not in self._scope.get("extensions", {}):
            await self._send({"type": "websocket.close", "code": refusal.close or 1008})
            return
        headers, text = http_response(refusal)
        start = {"type": "websocket.http.response.start", "status": refusal.status}
        await self._send({**start, "headers": [*headers, _CLOSE]})
        await self._send({"type": "websocket.http.response.body", "body": text})

    def _record_refusal(self, refusal: RequestError) -> None:
        tenant = self._tenant or self._authenticator.address_tenant(self._scope)
        self._telemetry.refused(refusal, tenant, path=self._scope["path"])

    def _record_noted(self) -> None:
        """Log and count an error with which the application responded."""
        if refusal := self._scope["state"].get("refusal"):
            self._status = self._status or refusal.status  # a handshake's status is not recorded
            self._record_refusal(refusal)

    def _record_request(self) -> None:
        if self._scope["path"] in _SCRAPES and self._body is not None:
            return
        self._telemetry.event_log.record(
            "request",
            tenant=str(self._tenant),
            method=self._scope.get("method", "WebSocket"),
            path=self._scope["path"],
            status=self._status,
            seconds=round(monotonic() - self._began, 6),
        )


def _closing(send: Send) -> Send:
    async def send_and_close(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), _CLOSE]}
        await send(message)

    return send_and_close
