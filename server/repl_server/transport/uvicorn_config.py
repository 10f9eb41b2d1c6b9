"""Configuration of uvicorn with the bounded protocols of `repl_server.limits`.

The protocols bound connections that never become requests: idle ones, endless headers, partial
messages, slow readers, and dead peers. An application does not see those.
"""

from __future__ import annotations

from typing import Any

import uvicorn
from starlette.types import ASGIApp

from ..limits.bounded_connection import ConnectionContext
from ..limits.bounded_http import BoundedHTTP
from ..limits.bounded_websocket import BoundedWebSocket

# Length of the kernel's accept queue. A client that finds the queue full retries after a second;
# the event loop accepts all queued connections in one turn, at 0.2 ms each.
_BACKLOG = 1024


def config(app: ASGIApp, context: ConnectionContext, **more: Any) -> uvicorn.Config:
    """The uvicorn configuration for `app`; `more` are further arguments of `uvicorn.Config`."""
    settings = context.settings
    http = type("HTTP", (BoundedHTTP,), {"context": context})
    ws = type("WebSocket", (BoundedWebSocket,), {"context": context})
    arguments: dict[str, Any] = {
        "host": settings.host,
        "port": settings.port,
        "http": http,
        "ws": ws,
        "ws_max_size": settings.largest_message,  # refused when announced, by its header
        "ws_ping_interval": settings.ping_s,
        "ws_ping_timeout": settings.ping_s,
        # A message of a few kilobytes could inflate to the size limit, and occupy the processor.
        "ws_per_message_deflate": False,
        "backlog": _BACKLOG,
        # `Settings.trusted_proxies` decides; uvicorn would trust all of this machine.
        "proxy_headers": False,
        "server_header": False,
        # The event log has the requests, without their query strings.
        "access_log": False,
        "log_config": None,
        "log_level": "warning",
    }
    return uvicorn.Config(app, **{**arguments, **more})
