"""`repl_server.asgi:app`: the application for an ASGI server of your own."""

from __future__ import annotations

from .app import create_app

app = create_app()
