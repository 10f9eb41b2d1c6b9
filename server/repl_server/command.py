"""`repl-env serve`: a server of environments on a port."""

from __future__ import annotations

from typing import Annotated

import typer

from repl_env.cli.session_options import opening


def serve(
    host: Annotated[str, typer.Option("--host", help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0: a free one.")] = 8000,
) -> None:
    """Serve environments over HTTP and WebSockets."""
    from .app import create_app
    from .serving import raise_open_files, server
    from .settings import Settings

    raise_open_files()
    app = create_app(Settings(host=host, port=port))
    with opening():
        app.state.host.prepare()
    server(app).run()
