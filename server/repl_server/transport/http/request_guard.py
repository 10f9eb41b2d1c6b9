"""`RequestGuard`: ASGI middleware that authenticates, limits, logs and counts every request.

The guard does not buffer: chunks of a body and of a response pass through as they arrive.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ...auth.authenticator import Authenticator
from ...limits.receive_buffers import LINGER_S, ReceiveBuffers
from ...protocol.request_error import RequestError, http_response
from ...quotas.usage_meters import QuotaRegistry, UsageMeter
from ...settings import Settings
from ...telemetry.recorder import Telemetry
from ...tenants.tenant import Tenant
from .request_body import RequestBody

# Served without a key, for probes: the responses say only whether the process runs or stops.
OPEN = frozenset((method, path) for method in ("GET", "HEAD") for path in ("/health", "/accepting"))
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

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle an ASGI scope."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
        elif scope["type"] == "http" and (scope["method"], scope["path"]) in OPEN:
            await self._app(scope, receive, _closing(send))
        else:
            await self._guard(HTTPExchange(scope, receive, send, self._context), scope)

    async def _guard(self, exchange: HTTPExchange, scope: Scope) -> None:
        try:
            tenant, meter = self._admit(scope)
        except RequestError as refusal:
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
        self._telemetry.refused(refusal, self._tenant, path=self._scope["path"])

    def _record_noted(self) -> None:
        """Log and count an error with which the application responded."""
        if refusal := self._scope["state"].get("refusal"):
            self._status = self._status or refusal.status  # a handshake's status is not recorded
            self._record_refusal(refusal)

    def _record_request(self) -> None:
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
