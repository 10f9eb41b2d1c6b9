"""How the servers that are measured are run: on a free port, which they print."""

from __future__ import annotations

import socket
from typing import Any

import uvicorn


def listener() -> socket.socket:
    """A listening socket on a free port of loopback; its address is printed first of all."""
    listening = socket.create_server(("127.0.0.1", 0), backlog=1024)
    host, port = listening.getsockname()
    print(f"http://{host}:{port}", flush=True)
    return listening


def serve(app: Any) -> None:
    """Serve until SIGTERM."""
    # No lines in a log, as they would be written into a terminal.
    uvicorn.Server(uvicorn.Config(app, log_level="error", access_log=False)).run([listener()])
