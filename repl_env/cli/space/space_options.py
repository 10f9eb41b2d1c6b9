"""Options of a Space to be made, and errors of making one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from repl_env.cli.exit_status import ExitStatus

if TYPE_CHECKING:
    from repl_env.integrations.hf_space.space_config import SpaceConfig

Keyed: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--keyed", help="Require a key for every request; otherwise anybody may use the Space."
    ),
]
Title: TypeAlias = Annotated[
    str | None, typer.Option(help="Title of the Space; by default repl-env.")
]
Base: TypeAlias = Annotated[
    str | None,
    typer.Option(
        help="The image to build on: one of Debian with Python of at least 3.11 and pip.",
        metavar="IMAGE",
    ),
]
AsJSON: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def plan_from(**given: Any) -> SpaceConfig:
    """The plan of the options that were given.

    Raises:
        typer.BadParameter: naming the one that is wrong.
    """
    from repl_env.integrations.hf_space.space_config import SpaceConfig

    try:
        return SpaceConfig(**{name: value for name, value in given.items() if value is not None})
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


@contextmanager
def failures_told() -> Iterator[None]:
    """Turn a Space or a wheel that cannot be made into a message and a status."""
    from repl_env.integrations.hf_space.wheel_packer import PackingError

    try:
        yield
    except PackingError as error:
        typer.echo(f"repl-env space: {error}", err=True)
        raise typer.Exit(ExitStatus.FAILED) from error
    except OSError as error:
        told = f"{error.filename}: {error.strerror}" if error.strerror else str(error)
        typer.echo(f"repl-env space: {told}", err=True)
        raise typer.Exit(ExitStatus.FAILED) from error
