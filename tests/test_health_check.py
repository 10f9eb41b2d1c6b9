"""docker/inside/healthy.py, the health check of the server's image."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[1] / "docker" / "inside" / "healthy.py"


class Server(ThreadingHTTPServer):
    status = 200

    @property
    def address_family(self) -> socket.AddressFamily:
        return socket.AF_INET6 if ":" in self.where else socket.AF_INET

    def __init__(self, where: str, status: int) -> None:
        self.where, self.status = where, status
        super().__init__((where, 0), Answers)


class Answers(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(self.server.status if self.path == "/health" else 404)  # type: ignore[attr-defined]
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def checked(**variables: str) -> subprocess.CompletedProcess[str]:
    # A proxy set for all containers does not apply: the address is the container's own.
    env = {"PATH": os.environ["PATH"], "http_proxy": "http://127.0.0.1:9", **variables}
    command = [sys.executable, "-I", str(PROGRAM)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=env)


@pytest.mark.parametrize(
    ("host", "listening", "status", "healthy"),
    [
        (None, "127.0.0.1", 200, True),
        ("127.0.0.1", "127.0.0.1", 200, True),
        ("0.0.0.0", "0.0.0.0", 200, True),
        ("127.0.0.78", "127.0.0.78", 200, True),
        ("localhost", "127.0.0.1", 200, True),
        ("::1", "::1", 200, True),
        ("::", "::1", 200, True),
        ("127.0.0.1", "127.0.0.1", 503, False),
        ("127.0.0.1", "127.0.0.1", 404, False),
    ],
)
def test_the_health_check_uses_the_address_of_the_server(host, listening, status, healthy) -> None:
    try:
        server = Server(listening, status)
    except OSError as error:
        pytest.skip(f"nothing can listen on {listening} here: {error}")
    with server:
        threading.Thread(target=server.serve_forever).start()
        try:
            where = {} if host is None else {"REPL_ENV_HOST": host}
            done = checked(**where, REPL_ENV_PORT=str(server.server_address[1]))
        finally:
            server.shutdown()

    assert done.returncode == (0 if healthy else 1), done.stderr
    assert bool(done.stderr) is not healthy


def test_the_health_check_fails_without_a_server() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    done = checked(REPL_ENV_PORT=port)

    assert done.returncode == 1 and f"127.0.0.1:{port}" in done.stderr
