"""Routes of the pages and of the files that they load.

The files are the same for everybody: a page asks for an API key itself, and sends it in headers.
"""

from __future__ import annotations

import re
from functools import cache
from hashlib import sha256
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Route
from starlette.types import Scope

from repl_env.display.pages import PAGE_POLICY, WebFile, web_files

from ..tenants import RequestError

_STATIC = Path(__file__).parent / "static"
_PREFIX = "/web/"
# Folders of `repl_env.display` whose files the pages load.
_SHARED = ("shared/", "vendor/")

# Media ranges that match HTML, the most specific first.
_HTML_RANGES = (b"text/html", b"text/*", b"*/*")
_ZERO_QUALITY = re.compile(rb"q\s*=\s*0(\.0*)?")
# `BrowserHeaders` adds who may frame a page, and the headers of every response.
_HEADERS = {
    "Content-Security-Policy": "; ".join(PAGE_POLICY),
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


def page_routes(*, playground: bool) -> list[BaseRoute]:
    """The routes of `/docs`, of the files that pages load, and of the playground at `/`."""
    routes: list[BaseRoute] = [
        Route("/docs", _docs, methods=["GET"]),
        Route(f"{_PREFIX}{{path:path}}", _file, methods=["GET"]),
    ]
    if playground:
        routes.append(HTMLRoute("/", _playground, methods=["GET"]))
    return routes


def is_page_request(scope: Scope) -> bool:
    """Return whether an ASGI request is for a page or for one of its files."""
    if scope["type"] != "http" or scope["method"] not in ("GET", "HEAD"):
        return False
    path = scope["path"]
    return path == "/docs" or path.startswith(_PREFIX) or (path == "/" and _accepts_html(scope))


class HTMLRoute(Route):
    """A route for requests that accept HTML; all others find no such path."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """As `Route.matches`."""
        if scope["type"] == "http" and not _accepts_html(scope):
            return Match.NONE, {}
        return super().matches(scope)


async def _docs(request: Request) -> Response:
    return _response(request, "docs/docs.html")


async def _playground(request: Request) -> Response:
    return _response(request, "playground/playground.html")


async def _file(request: Request) -> Response:
    return _response(request, request.path_params["path"])


@cache
def _files() -> dict[str, tuple[WebFile, str]]:
    """The files by path, with their entity tags; read once, so no request names another file."""
    shared = {name: file for name, file in web_files().items() if name.startswith(_SHARED)}
    found = web_files(_STATIC) | shared
    return {name: (file, f'"{sha256(file.content).hexdigest()}"') for name, file in found.items()}


def _response(request: Request, name: str) -> Response:
    if name not in _files():
        raise RequestError("UNKNOWN_PATH", "no page has such a file")
    file, tag = _files()[name]
    headers = {**_HEADERS, "ETag": tag}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(file.content, headers={**headers, "Content-Type": file.media_type})


def _accepts_html(scope: Scope) -> bool:
    """Whether the most specific range of `Accept` for HTML is not refused (RFC 9110, 12.5.1)."""
    values = [value for name, value in scope["headers"] if name == b"accept"]
    if not b"".join(values).strip():
        return True  # without the field, a client takes everything
    accepted = {}
    for media_range in b",".join(values).lower().split(b","):
        name, *parameters = (part.strip() for part in media_range.split(b";"))
        accepted[name] = not any(_ZERO_QUALITY.fullmatch(parameter) for parameter in parameters)
    matching = [accepted[name] for name in _HTML_RANGES if name in accepted]
    return matching[0] if matching else False
