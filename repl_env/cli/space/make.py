"""`repl-env space make`: the folder of a Space."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from repl_env.cli.options.option_groups import with_option_groups
from repl_env.cli.options.output_options import AsJSON

from .space_options import SpaceOptions, failures_reported


@with_option_groups
def make(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="The folder to write; made if it is not there.")
    ],
    space: SpaceOptions,
    repo: Annotated[
        str | None,
        typer.Option(help="The Space that the README names.", metavar="OWNER/NAME"),
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Overwrite files in a folder that is not empty.")
    ] = False,
    as_json: AsJSON = False,
) -> None:
    """Write a complete Space: a server with the installed version of repl-env in a wheel."""
    from repl_env.integrations.hf_space.space_folder import make_space

    plan = space.config(repo)
    if folder.exists() and not folder.is_dir():
        raise typer.BadParameter(f"{folder} is no folder", param_hint="'DIR'")
    with failures_reported():
        try:
            files = make_space(folder, plan, replace=replace)
        except FileExistsError as error:
            message = f"{folder} is not empty: --replace overwrites the files of a Space in it"
            raise typer.BadParameter(message, param_hint="'DIR'") from error
    names = sorted(file.name for file in files)
    if as_json:
        typer.echo(json.dumps({"folder": str(folder), "keyed": space.keyed, "files": names}))
        return
    for name in names:
        typer.echo(folder / name)
