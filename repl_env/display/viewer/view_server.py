"""`ViewServer`: the pages of the viewer on loopback, for one person, until it is closed.

Data is given to requests with the token of this start alone. Host and Origin are checked, so that
no page of another site reads it, by whatever name the site reaches this machine.
"""

from __future__ import annotations

import hmac
import json
import re
import secrets
import sys
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from repl_env.display.viewer.view_data import ViewData
from repl_env.display.web_files import HEADERS, web_files

HOST: Final = "127.0.0.1"
_RANGE: Final = re.compile(r"bytes=(\d{1,18})-(\d{1,18})")
_IDLE: Final = 60  # seconds after which a connection without requests is closed


class ViewServer(ThreadingHTTPServer):
    """A server of the pages about `data`, on a port of its own unless `port` is given.

    Attributes:
        token: what requests for data need; made anew for each server.

    Raises:
        OSError: the port is in use.
    """

    daemon_threads = True

    def __init__(self, data: ViewData, port: int = 0) -> None:
        self.data = data
        self.token = secrets.token_urlsafe(24)
        super().__init__((HOST, port), _Handler)

    @property
    def origin(self) -> str:
        """The address without the token, such as "http://127.0.0.1:8123"."""
        return f"http://{HOST}:{self.server_address[1]}"

    @property
    def url(self) -> str:
        """The address to open. The token is in the fragment, which no browser sends or logs."""
        return f"{self.origin}/#token={self.token}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report errors, but for those of a browser that went away."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Refused(Exception):
    """A request that gets a status and a text instead of data."""

    def __init__(self, status: HTTPStatus, text: str) -> None:
        super().__init__(text)
        self.status = status


class _Handler(BaseHTTPRequestHandler):
    server: ViewServer
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "repl-env", ""
    timeout = _IDLE

    def do_GET(self) -> None:
        try:
            self._check_origin()
            path = urlsplit(self.path).path
            if path.startswith("/api/"):
                self._check_token()
                self._answer_data(path)
            else:
                self._answer_file(path)
        except _Refused as refused:
            self._send(refused.status, json.dumps({"error": str(refused)}).encode(), _JSON)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing is logged: a person looks at files of their own."""

    def _check_origin(self) -> None:
        port = self.server.server_address[1]
        hosts = {f"{HOST}:{port}", f"localhost:{port}"}
        host, origin = self.headers.get("Host", ""), self.headers.get("Origin")
        site = self.headers.get("Sec-Fetch-Site", "none")
        if host not in hosts:
            raise _Refused(HTTPStatus.MISDIRECTED_REQUEST, "this server is asked by another name")
        data = self.path.startswith("/api/")
        if (origin is not None and origin != f"http://{host}") or (
            data and site not in {"same-origin", "none"}
        ):
            raise _Refused(HTTPStatus.FORBIDDEN, "the request comes from another page")

    def _check_token(self) -> None:
        given = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if not hmac.compare_digest(given.encode(), self.server.token.encode()):
            text = "the token is missing or of an earlier start: open the address that was printed"
            raise _Refused(HTTPStatus.UNAUTHORIZED, text)

    def _answer_file(self, path: str) -> None:
        name = "viewer/index.html" if path == "/" else path.removeprefix("/web/")
        file = web_files().get(name)
        if file is None:
            raise _Refused(HTTPStatus.NOT_FOUND, "there is no such file")
        self._send(HTTPStatus.OK, file.content, file.media_type)

    def _answer_data(self, path: str) -> None:
        found = [
            (answer, match.groups())
            for pattern, answer in _ROUTES
            if (match := pattern.fullmatch(path)) is not None
        ]
        if not found:
            raise _Refused(HTTPStatus.NOT_FOUND, "there is no such page")
        ((answer, arguments),) = found
        try:
            status, content = answer(self, *arguments)
        except KeyError:
            raise _Refused(HTTPStatus.NOT_FOUND, "there is no such file") from None
        except (OSError, ValueError) as error:
            raise _Refused(HTTPStatus.UNPROCESSABLE_ENTITY, str(error)) from error
        media_type = _JSON if status is HTTPStatus.OK else "application/octet-stream"
        self._send(status, content, media_type)

    def _listing(self) -> tuple[HTTPStatus, bytes]:
        return _as_json(self.server.data.listing())

    def _rows(self, identifier: str) -> tuple[HTTPStatus, bytes]:
        start, generation = self._number("from"), self._number("generation")
        return _as_json(self.server.data.rows(identifier, start, generation))

    def _part(self, identifier: str) -> tuple[HTTPStatus, bytes]:
        found = _RANGE.fullmatch(self.headers.get("Range", ""))
        if found is None or int(found[1]) > int(found[2]):
            raise _Refused(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, "a range is needed")
        content = self.server.data.part(identifier, int(found[1]), int(found[2]) + 1)
        return HTTPStatus.PARTIAL_CONTENT, content

    def _evaluation(self, identifier: str) -> tuple[HTTPStatus, bytes]:
        return _as_json(self.server.data.evaluation(identifier))

    def _comparison(self, before: str, after: str) -> tuple[HTTPStatus, bytes]:
        return _as_json(self.server.data.comparison(before, after))

    def _number(self, name: str) -> int:
        """The number of the query, by default 0."""
        text = parse_qs(urlsplit(self.path).query).get(name, ["0"])[0]
        if not (text.isascii() and text.isdecimal() and len(text) < 16):
            raise _Refused(HTTPStatus.BAD_REQUEST, f"{name} is no number")
        return int(text)

    def _send(self, status: HTTPStatus, content: bytes, media_type: str) -> None:
        self.send_response(status)
        headers: Mapping[str, str] = {
            **HEADERS,
            "Content-Type": media_type,
            "Content-Length": str(len(content)),
            "Cache-Control": "no-store",
        }
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)


_JSON: Final = "application/json; charset=utf-8"
_ID: Final = r"([0-9]{1,9})"
_Answer = Callable[..., tuple[HTTPStatus, bytes]]

_ROUTES: Final[tuple[tuple[re.Pattern[str], _Answer], ...]] = (
    (re.compile(r"/api/files"), _Handler._listing),
    (re.compile(rf"/api/files/{_ID}/rows"), _Handler._rows),
    (re.compile(rf"/api/files/{_ID}/bytes"), _Handler._part),
    (re.compile(rf"/api/files/{_ID}/evaluation"), _Handler._evaluation),
    (re.compile(rf"/api/comparisons/{_ID}/{_ID}"), _Handler._comparison),
)


def _as_json(value: dict[str, Any]) -> tuple[HTTPStatus, bytes]:
    # Half characters of UTF-16, which a model may return, are escapes in ASCII alone.
    return HTTPStatus.OK, json.dumps(value, allow_nan=False).encode("ascii")
