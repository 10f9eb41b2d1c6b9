"""Help screens: in groups, whole phrases, readable in narrow terminals; and shell completion."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from repl_env.cli.main import build
from tests.repl_env.cli.calls import application


def commands(command: Any, names: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The names of every command and group."""
    yield names
    for name, below in sorted(getattr(command, "commands", {}).items()):
        yield from commands(below, (*names, name))


COMMANDS = list(commands(typer.main.get_command(build())))


def screen(*names: str, columns: int = 80) -> str:
    done = CliRunner(env={"COLUMNS": str(columns)}).invoke(application(), [*names, "--help"])
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.parametrize("names", COMMANDS, ids=" ".join)
def test_a_help_screen_is_whole_phrases_that_no_width_breaks(names: tuple[str, ...]) -> None:
    wide, *narrow = (screen(*names, columns=columns) for columns in (200, 80, 60))
    words = set(wide.split())

    for told in narrow:
        assert "…" not in told
        assert all(len(line) <= 80 for line in told.splitlines())
        assert set(told.split()) == words
    options = re.split(r"\n  (?=-)", wide.partition("ptions:")[2])[1:]
    assert options
    assert [each for each in options if not each.partition("\n\n")[0].rstrip().endswith(".")] == []


@pytest.mark.parametrize(
    ("name", "groups"),
    [
        ("run", ["Arguments", "Model", "Input", "Turns and child runs", "Budget", "Isolation"]),
        ("eval", ["Arguments", "Evaluation", "Model", "Turns and child runs", "Budget"]),
        ("serve", ["Network and access", "Isolation", "Limits of a session"]),
    ],
)
def test_options_stand_in_groups_and_the_general_ones_last(name: str, groups: list[str]) -> None:
    titles = re.findall(r"^(\S.*):$", screen(name), re.MULTILINE)

    assert titles[: len(groups)] == groups
    assert titles[-1] == "Other options"


def test_options_tell_choices_defaults_and_what_is_required() -> None:
    told = " ".join(screen("run").split())

    assert "--isolation TIER Isolation tier of the sessions. One of auto, jailed, " in told
    assert "--timeout SECONDS Seconds that a cell may execute. Default: 30." in told
    assert re.search(r"--model MODEL .* Required\.", told)
    assert "Usage: repl-env run [OPTIONS] QUESTION" in screen("run")
    assert "Default: --resume." in " ".join(screen("eval").split())


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_a_script(shell: str) -> None:
    done = CliRunner().invoke(application(), ["completion", shell])

    assert done.exit_code == 0
    assert f"complete_{shell}" in done.stdout and "repl-env" in done.stdout
    assert CliRunner().invoke(application(), ["completion", "tcsh"]).exit_code == 2


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("repl-env ru", ["run"]),
        ("repl-env run --budget-t", ["--budget-tokens"]),
        ("repl-env run --isolation con", ["container", "confined"]),
        ("repl-env tasks c", ["check"]),
    ],
)
def test_a_script_is_answered(typed: str, offered: list[str]) -> None:
    words = typed.split()
    variables = {"COMP_WORDS": typed, "COMP_CWORD": str(len(words) - 1)}
    done = subprocess.run(
        [sys.executable, "-m", "repl_env"],
        env={**os.environ, "_REPL_ENV_COMPLETE": "complete_bash", **variables},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.stdout.split() == offered, done.stderr
