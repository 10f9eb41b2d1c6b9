"""Requests that no route takes as they are: an unknown path, a wrong method, `HEAD`, `OPTIONS`."""

from __future__ import annotations

from urllib.parse import quote

from fastapi import FastAPI, Response
from fastapi import Request as HTTPRequest
from starlette.requests import HTTPConnection
from starlette.routing import Match
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocketClose

from ...protocol.request_error import RequestError
from .episode_routes import error_response, note_error

# Those that a route may be for.
_METHODS = ("DELETE", "GET", "HEAD", "PATCH", "POST", "PUT")
# Characters of a path that are repeated to who probe for it.
_SHOWN = 100


def answer_unrouted(app: FastAPI) -> None:
    """Have `app` refuse, as it does all else, what none of its routes is for.

    FastAPI would say `{"detail": ...}`, without a code or an id, and close a socket without a word.
    """
    app.router.default = _unknown_path
    app.router.redirect_slashes = False
    app.add_exception_handler(405, _wrong_method)
    app.add_middleware(ImpliedMethods)


class ImpliedMethods:
    """Methods that a path has without a route: `HEAD` with `GET`, and `OPTIONS`.

    Answers to `HEAD` leave here with their body; servers do not send it.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        app = self._app
        if scope["type"] == "http" and scope["method"] in ("HEAD", "OPTIONS"):
            methods = _methods(scope)
            if scope["method"] == "OPTIONS" and methods:
                app = Response(status_code=204, headers=_allow(methods))
            elif "GET" in methods:
                scope = {**scope, "method": "GET"}
        await app(scope, receive, send)


async def _unknown_path(scope: Scope, receive: Receive, send: Send) -> None:
    if (place := _without_slash(scope)) is not None:
        await Response(status_code=307, headers={"Location": place})(scope, receive, send)
        return
    path = scope["path"][:_SHOWN]
    message = f"there is nothing at {path}"
    if path == "/":
        message += ", but /docs has what there is"
    elif scope["type"] == "http" and _is_routed(scope, "websocket"):
        message = f"{path} is for WebSockets, and this request came without an upgrade"
    refusal = RequestError("UNKNOWN_PATH", message)
    if scope["type"] == "http" or "websocket.http.response" in scope.get("extensions", {}):
        raise refusal
    # A server of the operator's own, which knows no other answer to a handshake.
    note_error(HTTPConnection(scope), refusal)
    await WebSocketClose()(scope, receive, send)


async def _wrong_method(request: HTTPRequest, error: Exception) -> Response:
    methods = _methods(request.scope)
    message = f"{request.method} is not for {request.scope['path'][:_SHOWN]}"
    answer = error_response(request, RequestError("WRONG_METHOD", message))
    answer.headers.update(_allow(methods))
    return answer


def _without_slash(scope: Scope) -> str | None:
    """Where a request leads whose path has slashes at its end that its route has not.

    FastAPI would name the whole URL, by a scheme and a path that a proxy may have changed: a client
    would send its key over plain HTTP, or to the wrong place.
    """
    path = scope["path"].rstrip("/")
    slashes = len(scope["path"]) - len(path)
    if scope["type"] != "http" or not slashes or not _methods({**scope, "path": path}):
        return None
    query = scope.get("query_string", b"").decode("latin-1")
    name = quote(path.rpartition("/")[2])
    return "../" * slashes + name + (f"?{query}" if query else "")


def _methods(scope: Scope) -> list[str]:
    """Those that have a route at the path of `scope`."""
    return [method for method in _METHODS if _is_routed(scope, "http", method)]


def _allow(methods: list[str]) -> dict[str, str]:
    implied = ["HEAD"] if "GET" in methods and "HEAD" not in methods else []
    return {"Allow": ", ".join([*methods, *implied, "OPTIONS"])}


def _is_routed(scope: Scope, kind: str, method: str = "") -> bool:
    # Made anew: FastAPI leaves in a scope what it has found out about its routes.
    place = {name: scope[name] for name in ("path", "root_path", "headers") if name in scope}
    probe = {**place, "type": kind, "method": method}
    return any(route.matches(probe)[0] is Match.FULL for route in scope["app"].router.routes)
