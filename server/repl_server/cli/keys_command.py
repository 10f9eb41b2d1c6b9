"""`repl-env keys`: make an API key."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Annotated

import typer

from ..auth.api_keys import VARIABLE, APIKeys, named, new_key


def keys(
    name: Annotated[str, typer.Argument(help="Whom the key is for; quotas go by this name.")],
    file: Annotated[
        Path | None, typer.Option(help="The key file to add it to; made if it is not there.")
    ] = None,
) -> None:
    """Make an API key and print it, once; only its hash is kept."""
    try:
        key, line = new_key(name)
        if file is not None:
            append(file, name, line)
    except OSError as error:
        raise typer.BadParameter(f"{file}: {error.strerror}", param_hint="--file") from None
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    typer.echo(key)
    where = f"added to {file}" if file is not None else f"for a key file, or {VARIABLE}"
    typer.echo(f"{line}\n^ {where}; the key above is not shown again.", err=True)


def append(file: Path, name: str, line: str) -> None:
    """Add `line` to the key file.

    Raises:
        ValueError: the file has a wrong line, or a key of that name.
        OSError: it cannot be read or written.
    """
    # The file is the tenant's alone: who can write to it can let anybody in.
    fd = os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    with open(fd, "r+", encoding="utf-8") as opened, named(file):
        # Two commands at a time: one of them finds the other's name there.
        fcntl.flock(opened, fcntl.LOCK_EX)
        text = opened.read().removeprefix("\ufeff")
        APIKeys.parse([*text.splitlines(), line], str(file))
        opened.write(line + "\n" if text.endswith("\n") or not text else f"\n{line}\n")
