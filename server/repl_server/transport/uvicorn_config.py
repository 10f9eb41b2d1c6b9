"""How uvicorn serves: its protocols for HTTP and WebSockets, with limits.

What an application never sees is bounded there: connections that send nothing, headers that do not
end, messages that stay half, clients that do not read, peers that are gone. The rest of a server's
life is uvicorn's.
"""

from __future__ import annotations

from typing import Any

import uvicorn
from starlette.types import ASGIApp

from ..limits.bounded_connection import ConnectionContext
from ..limits.bounded_http import BoundedHTTP
from ..limits.bounded_websocket import BoundedWebSocket

# New connections that the kernel keeps until they are looked at. A client that finds no room waits
# for a second; all are taken in one turn of the loop, at 0.2 ms each.
_BACKLOG = 1024


def config(app: ASGIApp, context: ConnectionContext, **more: Any) -> uvicorn.Config:
    """How uvicorn serves `app` with these limits; `more` are arguments of `uvicorn.Config`."""
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
        # A message of a few kilobytes can unfold to the limit, at our cost.
        "ws_per_message_deflate": False,
        "backlog": _BACKLOG,
        # Whose word is believed is `Settings.trusted_proxies`; uvicorn believes this machine.
        "proxy_headers": False,
        "server_header": False,
        # Requests are told by the journal, without their queries.
        "access_log": False,
        "log_config": None,
        "log_level": "warning",
    }
    return uvicorn.Config(app, **{**arguments, **more})
