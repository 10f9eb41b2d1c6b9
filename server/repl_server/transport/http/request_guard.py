"""`RequestGuard`: what every request passes before the application sees it, as bare ASGI.

Who asks, whether they may, how often, how many at a time, how much and how slowly they send. It
wraps the application without buffering: pieces of a body and of an answer go through as they come.
"""

from __future__ import annotations

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

# Answered to everybody: it says nothing but that the process lives, and probes have no keys.
OPEN = frozenset({("GET", "/health"), ("HEAD", "/health")})
# Whoever is refused, or has shown no key, keeps no connection.
_CLOSE = (b"connection", b"close")


@dataclass(frozen=True, slots=True)
class GuardContext:
    """What all requests of one server are judged by, and who is told of it."""

    settings: Settings
    authenticator: Authenticator
    quotas: QuotaRegistry
    inbound: ReceiveBuffers
    telemetry: Telemetry


class RequestGuard:
    """Lets requests through to `app`, with their `tenant` and `meter` in the scope's `state`."""

    def __init__(self, app: ASGIApp, context: GuardContext) -> None:
        self._app = app
        self._context = context

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
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
            tenant = authenticator.authenticate(scope)
        except RequestError:
            # Whoever has no key, or uses somebody else's browser, is counted by address.
            quotas.meter_of(authenticator.address_tenant(scope)).request()
            raise
        meter = quotas.meter_of(tenant)
        meter.request()
        meter.open_connection()
        return tenant, meter


class HTTPExchange:
    """One request and its answer, or its refusal."""

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
        """Let `app` answer."""
        self._tenant = tenant
        try:
            if self._body is None:
                await app(self._scope, self._receive, self._send)
                self._record_noted()
            else:
                self._body.begin(tenant)
                await self._run(app, self._body)
        except ClientDisconnect:
            pass  # amid its body: nobody is there to be told
        except Exception as error:  # noqa: BLE001 (the border: whatever it is, it is ours)
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
        # What the application makes of a body that was refused is not the answer.
        if self._body is not None and self._body.refusal is not None and self._status is None:
            return
        if message["type"] == "http.response.start":
            self._status = message["status"]
        await self._send(message)

    async def refuse(self, refusal: RequestError) -> None:
        """Answer with `refusal`, if nothing was answered yet."""
        self._record_refusal(refusal)
        # An answer that has begun stays half: the server ends the connection.
        if self._status is None:
            self._status = refusal.status
            refuse = self._refuse_socket if self._body is None else self._refuse_http
            await refuse(refusal)

    async def _fail(self, error: Exception) -> None:
        refusal = RequestError("SESSION_ERROR", "The server failed; the id finds it in the log.")
        self._telemetry.event_log.record_fault(error, id=refusal.id)
        try:
            await self.refuse(refusal)
        except RuntimeError:
            # A socket that was accepted, or closed already.
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
        """What the application itself refused."""
        if refusal := self._scope["state"].get("refusal"):
            self._status = self._status or refusal.status  # that of a handshake was not looked at
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
