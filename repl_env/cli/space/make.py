"""`repl-env space make`: the folder of a Space."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from .space_options import AsJSON, Base, Keyed, Title, failures_told, plan_from


def make(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="The folder to write; made if it is not there.")
    ],
    keyed: Keyed = False,
    title: Title = None,
    base: Base = None,
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

    plan = plan_from(keyed=keyed, title=title, base=base, repo=repo)
    if folder.exists() and not folder.is_dir():
        raise typer.BadParameter(f"{folder} is no folder", param_hint="'DIR'")
    with failures_told():
        try:
            files = make_space(folder, plan, replace=replace)
        except FileExistsError as error:
            told = f"{folder} is not empty: --replace writes the files of a Space anew there"
            raise typer.BadParameter(told, param_hint="'DIR'") from error
    names = sorted(file.name for file in files)
    if as_json:
        typer.echo(json.dumps({"folder": str(folder), "keyed": keyed, "files": names}))
        return
    for name in names:
        typer.echo(folder / name)
