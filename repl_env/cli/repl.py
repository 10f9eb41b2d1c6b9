"""`repl-env repl`: a jailed REPL for a person at a terminal, or for a program at a pipe."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from .exit_status import ExitStatus
from .options.context_files import STDIN, ContextFiles, contexts_from, loaded
from .options.help_groups import LIMITS, OUTPUT
from .options.limit_options import LimitOptions
from .options.option_groups import with_option_groups
from .options.session_options import (
    Isolation,
    Language,
    LanguageName,
    Mounts,
    Python,
    SessionOptions,
    mounts_of,
    opening,
    policy_of,
)

if TYPE_CHECKING:
    from repl_sandbox import Sandbox

    from .shell.interactive_shell import Shell

# Each state that can be undone is a waiting process.
_UNDO = 8
Undo: TypeAlias = Annotated[
    int,
    typer.Option(
        "--undo",
        min=1,
        max=128,
        help="Number of cells that :undo can take back.",
        rich_help_panel=LIMITS,
    ),
]
AsJSON: TypeAlias = Annotated[
    bool,
    typer.Option("--json", help="Print one JSON object for each cell.", rich_help_panel=OUTPUT),
]


@with_option_groups
def repl(
    *,
    context: ContextFiles = None,
    session: SessionOptions,
    limits: LimitOptions,
    python: Python = None,
    mount: Mounts = None,
    language: Language = LanguageName.FULL,
    undo: Undo = _UNDO,
    as_json: AsJSON = False,
) -> None:
    """Run Python interactively in a jailed session; :help lists the commands.

    Input that is no terminal is run statement by statement, as `python -i` does; exit 1 if one of
    them failed, or as sys.exit() says.
    """
    if any(one.rpartition("=")[2] == STDIN for one in context or ()):
        raise typer.BadParameter("standard input holds the cells", param_hint="--context")
    values = loaded(contexts_from(context or ()))
    from repl_sandbox import Sandbox

    with opening():
        sandbox = Sandbox(
            **session.arguments(),
            python=None if python is None else str(python),
            mounts=mounts_of(mount),
            limits=limits.limits(),
            policy=policy_of(language),
            history=undo,
        )
    raise typer.Exit(_run_cells(sandbox, values, limits, as_json=as_json))


def _run_cells(
    sandbox: Sandbox, values: Mapping[str, str | bytes], limits: LimitOptions, *, as_json: bool
) -> int:
    """Run the cells of standard input, close `sandbox`, and return the exit status."""
    from .shell.cell_screens import JSONScreen, TextScreen
    from .shell.interactive_shell import Shell
    from .shell.shell_commands import run_command

    is_terminal = sys.stdin.isatty()
    screen = JSONScreen() if as_json else TextScreen(memory=int(sandbox.limits.memory))
    exits = not (as_json or is_terminal)
    with sandbox:
        with opening():
            shell = Shell(
                sandbox, screen, run_command, values=values, timeout=limits.timeout, exits=exits
            )
        if not is_terminal:
            failed = _serve(shell)
            return shell.status or (ExitStatus.FAILED if failed else ExitStatus.OK)
        if not as_json:
            screen.note(_banner(shell, limits.memory))
        _converse(shell)
        return ExitStatus.OK


def _converse(shell: Shell) -> None:
    from .shell.line_editor import LineEditor, history_in

    shell.run_all(LineEditor(shell, history_in(os.environ)))


def _serve(shell: Shell) -> int:
    """Run the cells of a pipe, and return how many cells and commands failed."""
    from .shell.cell_boundaries import cells
    from .shell.piped_input import PipedLines

    lines = PipedLines(sys.stdin.buffer)
    try:
        shell.run_all(cells(lines, lines.paused))
    except BrokenPipeError:
        # Nobody reads any more; and the interpreter would complain about it when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return shell.failed


def _banner(shell: Shell, memory: str) -> str:
    from repl_env import __version__

    tier = shell.session.isolation.tier
    isolation = "NOT ISOLATED (tier process)" if tier == Isolation.PROCESS else f"tier {tier}"
    return (
        f"repl-env {__version__} · Python {platform.python_version()} · {isolation} · "
        f"{memory} · cells end after {shell.timeout:g} s · :help"
    )
