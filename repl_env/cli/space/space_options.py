"""Options of a Space to be made, and errors of making one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, TypeAlias

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


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceOptions:
    """The options of a new Space."""

    keyed: Keyed = False
    title: Title = None
    base: Base = None

    @property
    def is_default(self) -> bool:
        """True if no option is given."""
        return not (self.keyed or self.title or self.base)

    def config(self, repo: str | None) -> SpaceConfig:
        """Return the configuration of the Space `repo`.

        Raises:
            typer.BadParameter: naming the option with a wrong value.
        """
        from repl_env.integrations.hf_space.space_config import SpaceConfig

        given = {**asdict(self), "repo": repo}
        try:
            return SpaceConfig(**{name: each for name, each in given.items() if each is not None})
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error


@contextmanager
def failures_reported() -> Iterator[None]:
    """Turn a Space or a wheel that cannot be made into a message and a status."""
    from repl_env.integrations.hf_space.wheel_packer import PackingError

    try:
        yield
    except PackingError as error:
        typer.echo(f"repl-env space: {error}", err=True)
        raise typer.Exit(ExitStatus.FAILED) from error
    except OSError as error:
        reason = f"{error.filename}: {error.strerror}" if error.strerror else str(error)
        typer.echo(f"repl-env space: {reason}", err=True)
        raise typer.Exit(ExitStatus.FAILED) from error
