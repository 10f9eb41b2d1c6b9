"""`repl_server.asgi:app`: the application for an ASGI server of your own.

Environment variables configure it, with the names of the options of `repl-env serve`. The address
of that server is unknown here, so keys are required unless `REPL_ENV_HOST` is a loopback address or
`REPL_ENV_NO_AUTH` is set.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fastapi import FastAPI

    app: FastAPI

__all__ = ["app"]


def __getattr__(name: str) -> object:
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .app import create_app
    from .cli_options import of_variables

    try:
        made = create_app(of_variables(host="0.0.0.0"))
    except ValueError as error:
        error.add_note(
            "The variables are REPL_ENV_API_KEYS_FILE for api_keys, REPL_ENV_NO_AUTH=1 for no_auth,"
            " and REPL_ENV_HOST=127.0.0.1 if your server listens on loopback."
        )
        raise
    globals()["app"] = made
    return made
