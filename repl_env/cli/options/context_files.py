"""Contexts of a command: `--context FILE`, once or several times, `NAME=FILE`, `-`."""

from __future__ import annotations

import keyword
import os
import re
import sys
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from repl_env.common.json_values import text_or_bytes

from .help_groups import INPUT

STDIN = "-"

_HELP = (
    "A file for the variable `context`. Several files become variables with the files' names, or "
    "NAME by NAME=FILE. UTF-8 files become text, others bytes; - is standard input."
)

ContextFiles: TypeAlias = Annotated[
    list[str] | None, typer.Option("--context", metavar="FILE", help=_HELP, rich_help_panel=INPUT)
]


def contexts_from(given: Sequence[str]) -> dict[str, Path | str | bytes]:
    """Return the contexts by variable: readable files as paths, the content of `-`.

    Raises:
        typer.BadParameter: naming the file: it cannot be read, or two would have one name.
    """
    if list(given).count(STDIN) > 1:
        raise _bad("standard input can be read once only")
    contexts: dict[str, Path | str | bytes] = {}
    for one in given:
        name, path = _named(one)
        if name is None:
            name = "context" if len(given) == 1 else _name_of(path)
        if name in contexts:
            raise _bad(f"{one}: there is a context {name!r} already; write NAME={path}")
        contexts[name] = _read_stdin() if path == STDIN else _readable(Path(path))
    return contexts


def loaded(contexts: Mapping[str, Path | str | bytes]) -> dict[str, str | bytes]:
    """Return the contexts with the contents of files, as a session takes them."""
    return {
        name: text_or_bytes(_bytes_of(value)) if isinstance(value, Path) else value
        for name, value in contexts.items()
    }


def _named(given: str) -> tuple[str | None, str]:
    """Return a name and a path; a file whose own name has a `=` is a path."""
    name, equals, path = given.partition("=")
    if not equals or Path(given).exists():
        return None, given
    if not name.isidentifier() or keyword.iskeyword(name):
        raise _bad(f"{given}: there is no such file, and {name!r} cannot name a variable")
    return name, path


def _name_of(path: str) -> str:
    if path == STDIN:
        return "stdin"
    # As Python reads names in code; other systems write an accented letter as two characters.
    name = re.sub(r"\W", "_", unicodedata.normalize("NFKC", Path(path).stem))
    if not name.isidentifier() or keyword.iskeyword(name):
        name = f"_{name}"
    return name


def _readable(path: Path) -> Path:
    if path.is_dir():
        raise _bad(f"{path} is a directory")
    with _reading(path), path.open("rb"):
        return path


def _bytes_of(path: Path) -> bytes:
    with _reading(path):
        return path.read_bytes()


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _bad(f"{path}: {os.strerror(error.errno or 0)}") from error


def _read_stdin() -> str | bytes:
    return text_or_bytes(sys.stdin.buffer.read())


def _bad(message: str) -> typer.BadParameter:
    return typer.BadParameter(message, param_hint="--context")
