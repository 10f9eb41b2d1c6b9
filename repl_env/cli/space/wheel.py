"""`repl-env space wheel`: the distribution that AutoEnv finds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .space_options import failures_reported


def wheel(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder for the wheel.")],
) -> None:
    """Write the wheel of openenv-repl-env: the installed version, named as AutoEnv finds it."""
    from repl_env.integrations.hf_space.wheel_packer import pack_wheel

    with failures_reported():
        typer.echo(pack_wheel(folder))
