"""The options of `repl-env run` for the output of the run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from repl_env.common.replace_target import replace_target

from .help_groups import OUTPUT


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOutput:
    """The trajectory file, and the texts on stdout and stderr."""

    trajectory: Annotated[
        Path | None,
        typer.Option(
            "--trajectory",
            metavar="FILE",
            help="File for the trajectory of the run.",
            rich_help_panel=OUTPUT,
        ),
    ] = None
    force: Annotated[
        bool,
        typer.Option("--force", help="Replace an existing trajectory.", rich_help_panel=OUTPUT),
    ] = False
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print the answer only.", rich_help_panel=OUTPUT)
    ] = False
    verbose: Annotated[
        bool,
        typer.Option(
            "--verbose",
            "-v",
            help="Print code, output and errors of each cell to stderr.",
            rich_help_panel=OUTPUT,
        ),
    ] = False
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print the result as one JSON object.", rich_help_panel=OUTPUT),
    ] = False

    def check(self) -> None:
        """Raise typer.BadParameter if two options contradict each other."""
        if self.quiet and self.verbose:
            raise typer.BadParameter("--quiet and --verbose exclude each other")
        if self.force and self.trajectory is None:
            raise typer.BadParameter("--force goes with --trajectory")

    def trajectory_file(self) -> Path | None:
        """Return the path of the file to write; for a link, its target.

        Raises:
            typer.BadParameter: the file exists and `force` is false, or cannot be written.
        """
        if self.trajectory is None:
            return None
        try:
            target = replace_target(self.trajectory)
        except OSError as error:
            raise _unwritable(f"{self.trajectory}: {error.strerror or error}") from error
        if not target.parent.is_dir():
            raise _unwritable(f"{self.trajectory}: there is no directory {target.parent}")
        if target.is_dir():
            raise _unwritable(f"{self.trajectory} is a directory")
        if target.exists() and not self.force:
            raise _unwritable(f"{self.trajectory} exists; --force replaces it")
        return target


def _unwritable(message: str) -> typer.BadParameter:
    return typer.BadParameter(message, param_hint="--trajectory")
