"""Routes in general: strict JSON bodies, errors as responses, lost clients, unknown paths."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar
from urllib.parse import quote

from fastapi import FastAPI, Request, Response
from fastapi import Request as HTTPRequest
from fastapi.routing import APIRoute
from starlette.requests import ClientDisconnect, HTTPConnection
from starlette.routing import Match
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocketClose

from .json_codec import JSONCodec
from .protocol import read_object, request_error_of, text_of, validation_error
from .tenants import RequestError, tenant_of

# Cancel the work for an HTTP request when its client disconnects.
#
# An ASGI server does not cancel it. The response would go nowhere, and the request would occupy a
# session, or open one whose token nobody learns.

T = TypeVar("T")


async def run_until_disconnect(request: HTTPRequest, work: Coroutine[Any, Any, T]) -> T:
    """Await `work`, and cancel it if the client disconnects.

    Raises:
        ClientDisconnect: the client disconnected.
    """
    working = asyncio.create_task(work)
    leaving = asyncio.create_task(_disconnected(request))
    try:
        await asyncio.wait([working, leaving], return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientDisconnect
    finally:
        leaving.cancel()
        if not working.done():
            working.cancel()
            await asyncio.wait([working])


async def _disconnected(request: HTTPRequest) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


# `StrictJSONRoute`: a route whose JSON body is parsed like a WebSocket frame.


class StrictJSONRoute(APIRoute):
    """A route that parses its body as strictly as a frame, and without blocking others."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """As in the base, with the body parsed first."""
        handle = super().get_route_handler()

        async def strictly(request: Request) -> Response:
            body = await request.body()
            if body:
                _check_kind(request.headers.get("Content-Type", ""))
                reading: JSONCodec = request.app.state.manager.json_codec
                tenant = tenant_of(request.scope)
                request._json = await reading.read(body, read_object, tenant)
            return await handle(request)

        return strictly


def _check_kind(kind: str) -> None:
    """Reject a body that is not declared as JSON: HTML forms, and curl's default type."""
    name = kind.partition(";")[0].strip().lower()
    main, _, sub = name.partition("/")
    if kind and not (main == "application" and (sub == "json" or sub.endswith("+json"))):
        raise validation_error("header.Content-Type", f"must be application/json, not {name[:100]}")


def error_response(request: HTTPConnection, error: Exception) -> Response:
    """The response to a request that failed with `error`."""
    refusal = request_error_of(error)
    note_error(request, refusal)
    after = refusal.retry_after
    headers = {} if after is None else {"Retry-After": str(math.ceil(after))}
    return json_response(text_of(refusal.data()), headers, refusal.status)


async def error_response_async(request: HTTPConnection, error: Exception) -> Response:
    """As `error_response`, for the event loop: Starlette calls blocking handlers in a thread."""
    return error_response(request, error)


def note_error(request: HTTPConnection, refusal: RequestError) -> None:
    """Attach the error to the request, for the guard to log and count."""
    request.scope.setdefault("state", {})["refusal"] = refusal


def json_response(text: str, headers: dict[str, str] | None = None, status: int = 200) -> Response:
    """A response whose body is the JSON `text`."""
    return Response(text, status, headers, media_type="application/json")


# Requests that match no route: unknown paths, wrong methods, HEAD and OPTIONS.

# The key of a scope whose GET was a HEAD: its response may go without its body.
IMPLIED_HEAD = "implied_head"
# Methods that a route may have.
_METHODS = ("DELETE", "GET", "HEAD", "PATCH", "POST", "PUT")
# Characters of a path that an error quotes.
_SHOWN = 100


def answer_unrouted(app: FastAPI) -> None:
    """Make `app` answer unmatched requests with its own errors.

    FastAPI would send `{"detail": ...}`, without a code and an id, and close a WebSocket silently.
    """
    app.router.default = _unknown_path
    app.router.redirect_slashes = False
    app.add_exception_handler(405, _wrong_method)
    app.add_middleware(ImpliedMethods)


class ImpliedMethods:
    """Answers OPTIONS on every path, and HEAD where a route has GET.

    The response to HEAD keeps its body here unless that is large; the ASGI server does not send it.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle an ASGI scope."""
        app = self._app
        if scope["type"] == "http" and scope["method"] in ("HEAD", "OPTIONS"):
            methods = _methods(scope)
            if scope["method"] == "OPTIONS" and methods:
                app = Response(status_code=204, headers=_allow(methods))
            elif "GET" in methods:
                scope = {**scope, "method": "GET"}
                scope[IMPLIED_HEAD] = True
        await app(scope, receive, send)


async def _unknown_path(scope: Scope, receive: Receive, send: Send) -> None:
    if (place := _without_slash(scope)) is not None:
        await Response(status_code=307, headers={"Location": place})(scope, receive, send)
        return
    path = scope["path"][:_SHOWN]
    message = f"no route has the path {path}"
    if path == "/":
        message += "; /docs lists the routes"
    elif scope["type"] == "http" and _is_routed(scope, "websocket"):
        message = f"{path} accepts only WebSockets, and this request has no upgrade"
    refusal = RequestError("UNKNOWN_PATH", message)
    if scope["type"] == "http" or "websocket.http.response" in scope.get("extensions", {}):
        raise refusal
    # Another ASGI server, without the extension for HTTP responses to a handshake.
    note_error(HTTPConnection(scope), refusal)
    await WebSocketClose()(scope, receive, send)


async def _wrong_method(request: HTTPRequest, error: Exception) -> Response:
    methods = _methods(request.scope)
    message = f"{request.scope['path'][:_SHOWN]} has no method {request.method}"
    answer = error_response(request, RequestError("WRONG_METHOD", message))
    answer.headers.update(_allow(methods))
    return answer


def _without_slash(scope: Scope) -> str | None:
    """A relative redirect for a path with surplus slashes at its end, or None.

    FastAPI would redirect to an absolute URL with a scheme and a path that a proxy may have
    changed: a client would send its key over plain HTTP, or to the wrong place.
    """
    path = scope["path"].rstrip("/")
    slashes = len(scope["path"]) - len(path)
    if scope["type"] != "http" or not slashes or not _methods({**scope, "path": path}):
        return None
    query = scope.get("query_string", b"").decode("latin-1")
    name = quote(path.rpartition("/")[2])
    return "../" * slashes + name + (f"?{query}" if query else "")


def _methods(scope: Scope) -> list[str]:
    """Methods that have a route at the path of `scope`."""
    return [method for method in _METHODS if _is_routed(scope, "http", method)]


def _allow(methods: list[str]) -> dict[str, str]:
    implied = ["HEAD"] if "GET" in methods and "HEAD" not in methods else []
    return {"Allow": ", ".join([*methods, *implied, "OPTIONS"])}


def _is_routed(scope: Scope, kind: str, method: str = "") -> bool:
    # A new scope: FastAPI caches its routing decision in a scope.
    place = {name: scope[name] for name in ("path", "root_path", "headers") if name in scope}
    probe = {**place, "type": kind, "method": method}
    return any(route.matches(probe)[0] is Match.FULL for route in scope["app"].router.routes)
