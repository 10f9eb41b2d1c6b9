"""The form of the options of `repl-env serve`.

Each option has an environment variable too, such as `REPL_ENV_MAX_SESSIONS` for `--max-sessions`,
for containers and for `repl_server.asgi`.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import typer

PREFIX = "REPL_ENV_"

Texts: TypeAlias = list[str] | None


def option(name: str, panel: str, help: str, **more: Any) -> Any:
    """An option that has an environment variable too, under the heading `panel`."""
    # Of two names, such as --yes/--no, the first one gives the variable, which then may be 0.
    variable = PREFIX + name.partition("/")[0].removeprefix("--").replace("-", "_").upper()
    return typer.Option(name, help=help, rich_help_panel=panel, **{"envvar": variable, **more})


def seconds(name: str, panel: str, help: str) -> Any:
    """An option in seconds."""
    return option(name, panel, help, min=0, metavar="SECONDS")


def size(name: str, panel: str, help: str) -> Any:
    """An option in bytes."""
    return option(name, panel, help, metavar="SIZE")
