"""How the servers that ours is measured beside are run: on a free port, which they print."""

from __future__ import annotations

import socket
from typing import Any

import uvicorn


def serve(app: Any) -> None:
    """Serve until SIGTERM on a free port of loopback; the first line printed is the address."""
    listener = socket.create_server(("127.0.0.1", 0))
    host, port = listener.getsockname()
    print(f"http://{host}:{port}", flush=True)
    # No lines in a log, as they would be written into a terminal.
    uvicorn.Server(uvicorn.Config(app, log_level="error", access_log=False)).run([listener])
