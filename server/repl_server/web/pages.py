"""Routes of the pages and of the files that they load.

The files are the same for everybody: a page asks for an API key itself, and sends it in headers.
"""

from __future__ import annotations

import os
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.responses import FileResponse, Response
from starlette.routing import BaseRoute, Match, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send

from repl_env import display

from ..protocol.request_error import RequestError

_HERE = Path(__file__).parent / "static"
_SHARED = Path(display.__file__).parent / "web"
# The folders of files below `/web`, by name.
_FOLDERS = {
    "playground": _HERE / "playground",
    "docs": _HERE / "docs",
    "shared": _SHARED / "shared",
    "vendor": _SHARED / "vendor",
}
_PREFIX = "/web/"

# No inline script or style, no other origin, and no text that becomes markup or code. `blob:` is
# for figures of sessions. Who may frame a page is a header of its own (`BrowserHeaders`).
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:;"
    " connect-src 'self'; base-uri 'none'; form-action 'none';"
    " require-trusted-types-for 'script'; trusted-types 'none'"
)
_HEADERS = {"Content-Security-Policy": _POLICY, "Cache-Control": "no-cache"}


def page_routes(*, playground: bool) -> list[BaseRoute]:
    """The routes of `/docs`, of the files that pages load, and of the playground at `/`."""
    routes: list[BaseRoute] = [
        Route("/docs", Page(_HERE / "docs" / "docs.html"), methods=["GET"]),
        *(
            Route(f"{_PREFIX}{name}/{{path:path}}", PageFiles(directory=folder), methods=["GET"])
            for name, folder in _FOLDERS.items()
        ),
    ]
    if playground:
        home = Page(_HERE / "playground" / "playground.html")
        routes.append(HTMLRoute("/", home, methods=["GET"]))
    return routes


def is_page_request(scope: Scope) -> bool:
    """Whether an ASGI request is for a page or for one of its files."""
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


class Page:
    """The ASGI application that responds with an HTML file, under the policy for pages."""

    def __init__(self, file: Path) -> None:
        self._file = file

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle an ASGI scope."""
        response = FileResponse(self._file, headers=_HEADERS, media_type="text/html")
        await response(scope, receive, send)


class PageFiles(StaticFiles):
    """The files of a folder, by the path parameter `path`."""

    def get_path(self, scope: Scope) -> str:
        """As `StaticFiles.get_path`."""
        return os.path.normpath(os.path.join(*scope["path_params"]["path"].split("/")))

    async def get_response(self, path: str, scope: Scope) -> Response:
        """As `StaticFiles.get_response`, with errors of this server."""
        try:
            response = await super().get_response(path, scope)
        except HTTPException:
            raise RequestError("UNKNOWN_PATH", "no such file of a page") from None
        response.headers.update(_HEADERS)
        return response


def _accepts_html(scope: Scope) -> bool:
    accepted = [value for name, value in scope["headers"] if name == b"accept"]
    return any(b"text/html" in value.lower() for value in accepted)


