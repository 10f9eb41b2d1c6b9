"""`repl-env repl`: a jailed REPL for a person at a terminal, or for a program at a pipe."""

from __future__ import annotations

import os
import platform
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from .exit_status import ExitStatus
from .options.context_files import STDIN, ContextFiles, contexts_from, loaded
from .options.help_groups import LIMITS, OUTPUT
from .options.limit_options import (
    CellTimeout,
    CPUSeconds,
    FileSize,
    InterruptGrace,
    Memory,
    OpenFiles,
    Output,
    Processes,
    Workspace,
)
from .options.session_options import (
    ImageOption,
    Isolation,
    IsolationOption,
    Language,
    LanguageName,
    Mounts,
    Preload,
    Python,
    RequireOption,
    RuntimeOption,
    modules_of,
    mounts_of,
    opening,
    policy_of,
)

if TYPE_CHECKING:
    from .shell.interactive_shell import Shell

# Each state that can be undone is a waiting process.
_UNDO = 8


def repl(
    context: ContextFiles = None,
    isolation: IsolationOption = Isolation.AUTO,
    require: RequireOption = None,
    image: ImageOption = None,
    runtime: RuntimeOption = None,
    python: Python = None,
    mount: Mounts = None,
    preload: Preload = None,
    timeout: CellTimeout = 30.0,
    memory: Memory = "1GiB",
    processes: Processes = 64,
    open_files: OpenFiles = 256,
    file_size: FileSize = "256MiB",
    workspace: Workspace = "256MiB",
    output: Output = "64MiB",
    cpu_seconds: CPUSeconds = None,
    interrupt_grace: InterruptGrace = 0.5,
    language: Language = LanguageName.FULL,
    undo: Annotated[
        int,
        typer.Option(
            "--undo",
            min=1,
            max=128,
            help="Number of cells that :undo can take back.",
            rich_help_panel=LIMITS,
        ),
    ] = _UNDO,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print one JSON object for each cell.", rich_help_panel=OUTPUT),
    ] = False,
) -> None:
    """Type Python into a session of its own, held by the kernel; :help lists more.

    Input that is no terminal is run statement by statement, as `python -i` does; exit 1 if one of
    them failed, or as sys.exit() says.
    """
    if any(one.rpartition("=")[2] == STDIN for one in context or ()):
        raise typer.BadParameter("standard input holds the cells", param_hint="--context")
    values = loaded(contexts_from(context or ()))
    from repl_sandbox import Limits, Sandbox

    from .shell.cell_screens import JSONScreen, TextScreen
    from .shell.interactive_shell import Shell
    from .shell.shell_commands import run_command

    with opening():
        sandbox = Sandbox(
            isolation=isolation.value,
            require=None if require is None else require.value,
            image=image,
            runtime=runtime,
            python=None if python is None else str(python),
            mounts=mounts_of(mount),
            preload=modules_of(preload),
            limits=Limits(
                memory=memory,
                timeout=timeout,
                processes=processes,
                open_files=open_files,
                file_size=file_size,
                workspace=workspace,
                output=output,
                cpu_seconds=cpu_seconds,
                grace=interrupt_grace,
            ),
            policy=policy_of(language),
            history=undo,
        )
    memory_limit = int(sandbox.limits.memory)
    screen = JSONScreen() if as_json else TextScreen(memory=memory_limit)
    with sandbox:
        with opening():
            exits = not (as_json or sys.stdin.isatty())
            shell = Shell(sandbox, screen, run_command, values=values, timeout=timeout, exits=exits)
        if sys.stdin.isatty():
            if not as_json:
                screen.note(_banner(shell, memory))
            _converse(shell)
            return
        failed = _serve(shell)
    raise typer.Exit(shell.status or (ExitStatus.FAILED if failed else ExitStatus.OK))


def _converse(shell: Shell) -> None:
    from .shell.line_editor import LineEditor, history_in

    shell.run_all(LineEditor(shell, history_in(os.environ)))


def _serve(shell: Shell) -> int:
    """Run what comes through the pipe; how many cells and commands failed."""
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
    held = "NOT ISOLATED (tier process)" if tier == Isolation.PROCESS else f"tier {tier}"
    return (
        f"repl-env {__version__} · Python {platform.python_version()} · {held} · "
        f"{memory} · cells end after {shell.timeout:g} s · :help"
    )
