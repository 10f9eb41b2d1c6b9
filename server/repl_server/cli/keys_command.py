"""`repl-env keys`: create an API key."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Annotated

import typer

from ..auth.api_keys import VARIABLE, APIKeys, named, new_key


def keys(
    name: Annotated[
        str, typer.Argument(help="Name of the key's user, which quotas and logs refer to.")
    ],
    file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Key file to add the key to; created if missing."),
    ] = None,
) -> None:
    """Create an API key and print it once; only its hash is stored."""
    try:
        key, line = new_key(name)
        if file is not None:
            append(file, name, line)
    except OSError as error:
        raise typer.BadParameter(f"{file}: {error.strerror}", param_hint="--file") from None
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    typer.echo(key)
    where = (
        f"added to {file}" if file is not None else f"add this line to a key file, or to {VARIABLE}"
    )
    typer.echo(f"{line}\n^ {where}; the key above is not shown again.", err=True)


def append(file: Path, name: str, line: str) -> None:
    """Append `line` to the key file.

    Raises:
        ValueError: the file has an invalid line, or a key with this name.
        OSError: the file cannot be read or written.
    """
    # The file is the tenant's alone: who can write to it can let anybody in.
    fd = os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    with open(fd, "r+", encoding="utf-8") as opened, named(file):
        # Of two concurrent commands, the second sees the name that the first one added.
        fcntl.flock(opened, fcntl.LOCK_EX)
        text = opened.read().removeprefix("\ufeff")
        APIKeys.parse([*text.splitlines(), line], str(file))
        opened.write(line + "\n" if text.endswith("\n") or not text else f"\n{line}\n")
