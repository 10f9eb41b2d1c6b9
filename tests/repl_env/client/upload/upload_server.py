"""A server of `PUT /contexts/{sha256}` with troubles that a test chooses."""

from __future__ import annotations

import hashlib
import json
import socket
import ssl
import threading
from collections.abc import Callable
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeAlias

from repl_env.client.address import ServerAccess
from repl_env.client.requests import UploadBody

KEY = "sk-a-secret-of-this-client"
KIB = 1 << 10

# A test's response to a request before the store sees it: None lets it through.
Trouble: TypeAlias = Callable[["Handler"], bool]


class Store:
    """`PUT /contexts/{sha256}` as docs/endpoint.md has it, and a list of troubles to begin with."""

    def __init__(
        self, *troubles: Trouble, tls: tuple[ssl.SSLContext, ssl.SSLContext] | None = None
    ) -> None:
        self.troubles = list(troubles)
        self._tls = tls
        self.parts: dict[str, bytes] = {}
        self.whole: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.headers: list[dict[str, str]] = []

    def __enter__(self) -> Store:
        handler = type("Bound", (Handler,), {"store": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        if self._tls is not None:
            self._server.socket = self._tls[0].wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @property
    def access(self) -> ServerAccess:
        if self._tls is None:
            return ServerAccess.of(f"http://127.0.0.1:{self.port}/base", KEY)
        return ServerAccess.of(f"https://127.0.0.1:{self.port}/base", KEY, None, self._tls[1])


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    store: Store

    def log_message(self, *_: Any) -> None:
        pass

    def handle(self) -> None:
        try:
            super().handle()
        except (BrokenPipeError, ConnectionResetError):
            pass

    @property
    def sha256(self) -> str:
        assert self.path.startswith("/base/contexts/"), self.path
        return self.path.rpartition("/")[2]

    def answer(self, status: int, body: Any = None, **headers: str) -> bool:
        data = b"" if body is None else json.dumps(body).encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)
        return True

    def begin(self) -> bool:
        self.store.asked.append(f"{self.command} {self.headers.get('Content-Range', '')}".strip())
        self.store.headers.append(dict(self.headers))
        return bool(self.store.troubles) and self.store.troubles.pop(0)(self)

    def do_HEAD(self) -> None:
        if not self.begin():
            held = self.store.parts.get(self.sha256, b"")
            if self.sha256 in self.store.whole:
                self.answer(200)
            else:
                self.answer(404, **({"Upload-Offset": str(len(held))} if held else {}))

    def do_PUT(self) -> None:
        if self.begin():
            return
        place, _, total = self.headers["Content-Range"].removeprefix("bytes ").partition("/")
        first, last = map(int, place.split("-"))
        data = self.rfile.read(int(self.headers["Content-Length"]))
        assert len(data) == last - first + 1
        held = self.store.parts.get(self.sha256, b"")
        if first != len(held):
            self.answer(409, {"received": len(held)})
        elif len(held) + len(data) < int(total):
            self.store.parts[self.sha256] = held + data
            self.answer(202, {"received": len(held) + len(data)})
        elif hashlib.sha256(held + data).hexdigest() == self.sha256:
            self.store.whole[self.sha256] = held + data
            self.answer(201, {"sha256": self.sha256})
        else:
            self.store.parts.pop(self.sha256, None)
            self.answer(422)


def breaks(request: Handler) -> bool:
    """The connection breaks during a request."""
    request.connection.shutdown(socket.SHUT_RDWR)
    request.close_connection = True
    return True


def fine(_: Handler) -> bool:
    return False


def busy(request: Handler) -> bool:
    request.close_connection = True
    body = {"code": "DRAINING", "retry_after": 0.01}
    return request.answer(503, body, Connection="close")


DATA = bytes(range(251)) * 4000  # 1,004,000 bytes: four pieces


def parcel(data: bytes = DATA) -> UploadBody:
    return replace(UploadBody.of_bytes(data), name="context")
