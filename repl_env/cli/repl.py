"""`repl-env repl`: a jailed REPL for a person at a terminal, or for a program at a pipe."""

from __future__ import annotations

import codecs
import io
import os
import platform
import re
import select
import sys
import tokenize
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, BinaryIO, TypeAlias

import typer

from repl_env.cli.model_options import STDIN, ContextFiles, contexts_from, loaded
from repl_env.cli.options import (
    LIMITS,
    OUTPUT,
    ExitStatus,
    Isolation,
    Language,
    LanguageName,
    LimitOptions,
    Mounts,
    Python,
    SessionOptions,
    mounts_of,
    opening,
    policy_of,
    with_option_groups,
)

if TYPE_CHECKING:
    from repl_env.cli.shell import Shell
    from repl_sandbox import Sandbox


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
    from repl_env.cli.cells import JSONScreen, TextScreen
    from repl_env.cli.shell import Shell, run_command

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
    from repl_env.cli.line_editor import LineEditor, history_in

    shell.run_all(LineEditor(shell, history_in(os.environ)))


def _serve(shell: Shell) -> int:
    """Run the cells of a pipe, and return how many cells and commands failed."""
    from repl_env.cli.cells import cells

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


# The lines of a pipe or a file as Python reads source: their encoding, a BOM, how they end.

_READ = 1 << 16
# Seconds without more input after which the writer is taken to wait for an answer. A writer
# of a whole file makes no such pause, and a program that waits does not mind this one.
_PAUSE = 0.2
# A first line after which the second may name the encoding.
_SAYS_NOTHING = re.compile(rb"[ \t\f]*(?:[#\r\n]|\Z)")


class PipedLines:
    """The lines of `stream` as text that ends in a line feed, each as soon as it is there.

    A BOM is dropped. The encoding is the one that the first two lines name as Python source does,
    else UTF-8; bytes that are no text in it become replacement characters.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._whole: list[bytes] = []  # lines that were read, the last one first
        self._begun: list[bytes] = []  # pieces of the line after them
        try:
            self._fd: int | None = stream.fileno()
        except io.UnsupportedOperation:  # it is in memory, and all of it is there
            self._fd = None

    def __iter__(self) -> Iterator[str]:
        first = self._line()
        marked = first.startswith(codecs.BOM_UTF8)
        ahead = [first.removeprefix(codecs.BOM_UTF8)]
        if _SAYS_NOTHING.match(ahead[0]):
            ahead.append(self._line())
        encoding = "utf-8" if marked else _encoding(ahead)
        for line in ahead:
            yield from _texts(line, encoding)
        while line := self._line():
            yield from _texts(line, encoding)

    def paused(self) -> bool:
        """Return whether the pipe is empty, and stays so for a while."""
        if self._fd is None or self._whole or self._begun:
            return False
        return not select.select([self._fd], [], [], _PAUSE)[0]

    def _line(self) -> bytes:
        """Return the next line, b"" at the end."""
        while not self._whole:
            data = self._stream.read(_READ) if self._fd is None else os.read(self._fd, _READ)
            if not data:
                last, self._begun = b"".join(self._begun), []
                return last
            first, *others = data.split(b"\n")
            self._begun.append(first)
            for line in others:
                self._whole.append(b"".join(self._begun) + b"\n")
                self._begun = [line] if line else []
            self._whole.reverse()
        return self._whole.pop()


def _encoding(first_lines: list[bytes]) -> str:
    try:
        encoding, _ = tokenize.detect_encoding(iter(first_lines).__next__)
        b"\n".decode(encoding)
    except (SyntaxError, LookupError, UnicodeError):  # unknown, or none of text
        return "utf-8"
    return encoding


def _texts(line: bytes, encoding: str) -> list[str]:
    """The lines in a line: a carriage return ends one as well."""
    text = line.decode(encoding, "replace").replace("\r\n", "\n").replace("\r", "\n")
    return io.StringIO(text, newline="\n").readlines()
