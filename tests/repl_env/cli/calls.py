"""Calls of `repl-env` in this process, for what does not need one of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

import pytest
import typer

from repl_env.cli.main import build, installed


@cache
def application() -> typer.Typer:
    """The command line with all that is installed."""
    return build()


@dataclass(frozen=True)
class Done:
    """The result of a call, with the names of `subprocess.CompletedProcess`."""

    returncode: int
    stdout: str
    stderr: str


Call: TypeAlias = Callable[..., Done]


def caller(name: str, capsys: pytest.CaptureFixture[str], patch: pytest.MonkeyPatch) -> Call:
    """A function that calls the command `name` with its arguments."""
    patch.setenv("NO_COLOR", "1")
    patch.setenv("COLUMNS", "200")
    # Only this command of all installed ones, because importing the others takes time.
    command = build([point for point in installed() if point.name == name])

    def call(*arguments: str) -> Done:
        with pytest.raises(SystemExit) as ended:
            command([name, *arguments])
        printed = capsys.readouterr()
        code = ended.value.code
        return Done(code if isinstance(code, int) else 0, printed.out, printed.err)

    return call
