"""OpenEnv's names for the server's application: `app`, `create_repl_environment`, `main`.

`uvicorn repl_env.server.app:app` serves `repl_server.asgi:app`. The server is an extra, so it is
loaded when one of the names is used and not when this module is imported.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fastapi import FastAPI

    from repl_env.env.environment import REPLEnvironment

    app: FastAPI

__all__ = ["app", "create_repl_environment", "main"]


def __getattr__(name: str) -> object:
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from repl_server import asgi

    return asgi.app


def create_repl_environment() -> REPLEnvironment:
    """An environment with what OpenEnv's variables say, as the server's sessions have.

    Raises:
        ValueError: naming the variable that is wrong.
    """
    from repl_env.env.environment import REPLEnvironment
    from repl_server.cli_options import episodes_of_variables

    made = REPLEnvironment()
    made.settings = episodes_of_variables()
    return made


def main() -> None:
    """Serve, as `repl-env serve` with the options that follow the program's name."""
    from repl_env.cli import main as command_line

    sys.argv[1:1] = ["serve"]
    command_line.main()


if __name__ == "__main__":
    main()
