"""`repl-env COMMAND`: collects the commands that the installed distributions offer.

A command is an entry point of the group `repl_env.commands`. It is either a function that typer
can wrap or a `typer.Typer` with commands of its own. Its module is imported for every call of
`repl-env`, so it imports what is heavy inside the function.
"""

from __future__ import annotations

import asyncio
import errno
import io
import os
import signal
import socket
import sys
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from enum import Enum, StrEnum
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

from repl_env.cli.config import configurable
from repl_env.cli.options import OUTPUT, ExitStatus, choices, naming_value, option_types
from repl_env.cli.tables import copyable, harmless

# The help screens of commands: options in groups, whole phrases, readable in narrow terminals.

_COLUMN = 26  # where the texts of options begin
_NARROW = 18  # likewise in a terminal of fewer than `_WIDE` columns
_WIDE = 70
_OTHERS = "Other options"
# The value of an option, by its type.
_METAVARS: dict[type, str] = {int: "N", float: "X", Path: "PATH", str: "TEXT"}


class HelpCommand(TyperCommand):
    """A command whose options are listed in the groups that they name (`rich_help_panel`)."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments; each option has an environment variable with its long name."""
        for option in self.params:
            if option.param_type_name == "option" and option.envvar is None:
                key = max(option.opts, key=len).removeprefix("--").replace("-", "_").upper()
                if ctx.auto_envvar_prefix is not None:
                    option.envvar = f"{ctx.auto_envvar_prefix}_{key}"
        arguments = list(args)
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            raise naming_value(error, arguments) from error

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help as plain text, whatever this version of typer prefers."""
        write_help(self, ctx, formatter)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the parts of the line of usage."""
        arguments = [param for param in self.params if param.param_type_name == "argument"]
        return ["[OPTIONS]", *map(argument_name, arguments)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments and options, group by group."""
        write_options(self, ctx, formatter)


class HelpGroup(TyperGroup):
    """A group of commands, with help as that of its commands."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command; a usage error may quote a file, whose controls become visible."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            error.message = harmless(error.message)
            raise

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help as plain text, whatever this version of typer prefers."""
        write_help(self, ctx, formatter)

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the commands, sorted."""
        return sorted(super().list_commands(ctx))

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write options and commands."""
        write_options(self, ctx, formatter)
        self.format_commands(ctx, formatter)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the name and the first sentence of each command."""
        rows = []
        for name in self.list_commands(ctx):
            command = self.get_command(ctx, name)
            if command is not None and not command.hidden:
                rows.append((name, command.get_short_help_str(limit=200)))
        _write(formatter, "Commands", rows)


def write_help(command: Any, ctx: Any, formatter: Any) -> None:
    """Write usage, description and options of `command`."""
    command.format_usage(ctx, formatter)
    command.format_help_text(ctx, formatter)
    command.format_options(ctx, formatter)
    command.format_epilog(ctx, formatter)


def write_options(command: Any, ctx: Any, formatter: Any) -> None:
    """Write the parameters of `command`, in groups."""
    groups: dict[str, list[tuple[str, str]]] = {"Arguments": []}
    kinds = option_types(command)
    for parameter in command.get_params(ctx):
        if not getattr(parameter, "hidden", False):
            kind = kinds.get(parameter.name)
            row = _term(parameter, kind), _text(parameter, kind)
            groups.setdefault(_group(parameter), []).append(row)
    output, others = groups.pop(OUTPUT, []), groups.pop(_OTHERS, [])
    if output:
        groups[OUTPUT] = output
    for title, rows in {**groups, _OTHERS if len(groups) > 1 else "Options": others}.items():
        _write(formatter, title, rows)


def _group(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return "Arguments"
    return getattr(parameter, "rich_help_panel", None) or _OTHERS


def _write(formatter: Any, title: str, rows: Sequence[tuple[str, str]]) -> None:
    if not rows:
        return
    column = _COLUMN if formatter.width >= _WIDE else _NARROW
    with formatter.section(title):
        indent = formatter.current_indent
        for term, text in rows:
            wrapped = copyable(text, formatter.width, column)
            if len(term) + indent + 2 > column:
                formatter.write(f"{' ' * indent}{term}\n{wrapped}\n")
            else:
                formatter.write(f"{' ' * indent}{term}".ljust(column) + f"{wrapped.lstrip()}\n")


def _term(parameter: Any, kind: type | None) -> str:
    """Return the names of an option and its value, such as `-q, --quiet` or `--memory SIZE`."""
    if parameter.param_type_name == "argument":
        return argument_name(parameter)
    names = sorted(parameter.opts, key=len)
    if parameter.secondary_opts:
        return " / ".join([*names, *parameter.secondary_opts])
    listed = ", ".join(names)
    if parameter.is_flag:
        return listed
    return f"{listed} {parameter.metavar or _METAVARS.get(kind or str, 'NAME')}"


def argument_name(parameter: Any) -> str:
    """Return the name of an argument in capitals, as in the line of usage."""
    name = parameter.metavar or parameter.name.upper()
    if parameter.nargs != 1:
        name = f"{name.removesuffix('...')}..."
    return name if parameter.required else f"[{name}]"


def _text(parameter: Any, kind: type | None) -> str:
    text = (getattr(parameter, "help", None) or "").strip()
    parts = [text if text.endswith(".") or not text else f"{text}."]
    if values := choices(kind):
        parts.append(f"One of {', '.join(values)}.")
    if default := _default(parameter):
        parts.append(f"Default: {default}.")
    if parameter.required and parameter.param_type_name == "option":
        parts.append("Required.")
    return " ".join(part for part in parts if part)


def _default(parameter: Any) -> str:
    """Return the default in words; "" without one, or if the text of the option has it."""
    if isinstance(text := getattr(parameter, "show_default", None), str):
        return text
    value = parameter.default
    if value is None or callable(value) or text is False or parameter.required:
        return ""
    if getattr(parameter, "is_flag", False):
        named = parameter.opts if value else parameter.secondary_opts
        return max(named, key=len, default="")
    return _shown(value) if not isinstance(value, (list, tuple)) else ", ".join(map(str, value))


def _shown(value: Any) -> str:
    if isinstance(value, Enum):
        value = value.value
    return f"{value:g}" if isinstance(value, float) else str(value)


# The event loop of a command, in which no Ctrl-C is seen late.

T = TypeVar("T")

_READ = 4096  # bytes; of a signal there is one


def run_loop(coroutine: Coroutine[Any, Any, T]) -> T:
    """asyncio.run(`coroutine`), in the main thread; Ctrl-C cancels it and is KeyboardInterrupt."""
    with asyncio.Runner() as runner, _woken_by_signals(runner.get_loop()):
        return runner.run(coroutine)


@contextmanager
def _woken_by_signals(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Have a signal end a wait of `loop`, also one that comes just before the wait.

    Python's handlers run between two of its own instructions. After the last one before
    epoll_wait(2) a signal is only taken note of: that call is not interrupted, and whatever the
    loop waits for comes first. See signal.set_wakeup_fd.
    """
    read, write = socket.socketpair()
    with read, write:
        read.setblocking(False)
        write.setblocking(False)
        loop.add_reader(read, read.recv, _READ)
        before = signal.set_wakeup_fd(write.fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(before)
            loop.remove_reader(read)


# `repl-env completion SHELL`: a script that completes commands and options in a shell.

_PROGRAM = "repl-env"
# The variable by which a script asks the program for completions.
VARIABLE = "_REPL_ENV_COMPLETE"


class CompletionShell(StrEnum):
    """The shells that have a script."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion(
    shell: Annotated[CompletionShell, typer.Argument(help="The shell that is to load the script.")],
) -> None:
    """Print a script that completes commands and options in a shell.

    \b
    bash: source <(repl-env completion bash)
    zsh:  source <(repl-env completion zsh)
    fish: repl-env completion fish | source
    """
    from typer.completion import get_completion_script  # type: ignore[attr-defined]

    script = get_completion_script(prog_name=_PROGRAM, complete_var=VARIABLE, shell=shell.value)
    typer.echo(script)


def prepare_completion() -> None:
    """Load the formats of the shells if a script asks for completions."""
    if VARIABLE in os.environ:
        from typer.completion import completion_init  # type: ignore[attr-defined]

        completion_init()


# The standard streams of a command, which may be closed, full, or without a reader.

# Errors of a write without space on the device; typer handles a reader that has left.
FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


def hold_streams() -> None:
    """Open the streams that are closed, and make all of them accept every text.

    A closed stream becomes /dev/null. Otherwise a socket would get its number, and receive the
    output of a child process.
    """
    for fd in range(3):
        with suppress(OSError):
            os.fstat(fd)
            continue
        os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest number that is free
    sys.stdin = sys.stdin or os.fdopen(0, encoding="utf-8", closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", encoding="utf-8", closefd=False)
    for stream in (sys.stdout, sys.stderr):
        # An answer that was paid for is not lost to a terminal that has no sign for a part of it.
        # The second is Python's where the locale is that of C, as in cron and in containers.
        if isinstance(stream, io.TextIOWrapper) and stream.errors in ("strict", "surrogateescape"):
            stream.reconfigure(errors="replace")


def give_up_stdout() -> None:
    """Discard pending output, which Python would try to write again as it exits."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)


GROUP = "repl_env.commands"


def build(points: list[EntryPoint] | None = None) -> typer.Typer:
    """Return the application with one command for each entry point, by default all installed."""
    app = typer.Typer(
        name="repl-env",
        help="A persistent, jailed Python REPL for language models.",
        cls=HelpGroup,
        no_args_is_help=True,
        add_completion=False,  # `repl-env completion` prints the scripts
        rich_markup_mode=None,  # boxes break options and commands that are to be copied
        pretty_exceptions_enable=False,  # a bug report needs the plain traceback
        context_settings={
            "help_option_names": ["-h", "--help"],  # of all commands
            "auto_envvar_prefix": "REPL_ENV",  # REPL_ENV_RUN_MODEL for `run --model`
        },
    )
    app.callback()(_options)
    for point in points if points is not None else installed():
        _add(app, point)
    return app


def installed() -> list[EntryPoint]:
    """Return the entry points of the group in this environment, by name."""
    return sorted(entry_points(group=GROUP), key=lambda point: point.name)


def _add(app: typer.Typer, point: EntryPoint) -> None:
    command = _load(point)
    if isinstance(command, typer.Typer):
        own = command.info.cls  # a placeholder, if the group has none
        cls = own if isinstance(own, type) and issubclass(own, HelpGroup) else HelpGroup
        app.add_typer(_uniform(command), name=point.name, cls=cls)
    else:
        app.command(point.name, cls=HelpCommand)(configurable(command))


def _uniform(app: typer.Typer) -> typer.Typer:
    """Return a copy of a group whose commands have the help and `--config` of all others."""
    made = copy(app)
    made.registered_commands = [
        copy(registered_command) for registered_command in app.registered_commands
    ]
    for registered_command in made.registered_commands:
        registered_command.cls = HelpCommand
        if registered_command.callback is not None:
            registered_command.callback = configurable(registered_command.callback)
    made.registered_groups = [copy(registered_group) for registered_group in app.registered_groups]
    for group in made.registered_groups:
        group.cls = HelpGroup
        if group.typer_instance is not None:
            group.typer_instance = _uniform(group.typer_instance)
    return made


def _load(point: EntryPoint) -> typer.Typer | Callable[..., object]:
    try:
        command = point.load()
    except Exception as error:  # noqa: BLE001 (a broken plug-in must cost its own command only)
        return _unavailable(point, f"{type(error).__name__}: {error}")
    if isinstance(command, typer.Typer) or callable(command):
        return command  # type: ignore[no-any-return]  # checked on the line above
    return _unavailable(point, f"{point.value} is not a function and not a typer.Typer")


def _unavailable(point: EntryPoint, reason: str) -> Callable[[], None]:
    def command() -> None:
        typer.echo(f"repl-env {point.name} cannot be loaded: {reason}", err=True)
        raise typer.Exit(ExitStatus.FAILED)

    command.__doc__ = f"Not available: {reason}"
    return command


def _show_version(wanted: bool) -> None:
    if wanted:
        from repl_env import __version__

        typer.echo(f"repl-env {__version__}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", "-V", help="Print the version.", callback=_show_version, is_eager=True
        ),
    ] = False,
) -> None:
    # With a callback, an application of one command still takes that command's name.
    """A persistent, jailed Python REPL for language models."""


def main() -> None:
    """Run the command line; leaves by SystemExit with one of `ExitStatus`."""
    hold_streams()
    prepare_completion()
    try:
        build()(prog_name="repl-env")
    except OSError as error:
        if error.errno not in FULL or error.filename is not None:
            raise
        with suppress(OSError):
            typer.echo(f"repl-env: cannot write: {error.strerror}", err=True)
        give_up_stdout()
        sys.exit(ExitStatus.FAILED)
    except KeyboardInterrupt:  # while the commands were loaded; typer has those of the commands
        sys.exit(ExitStatus.INTERRUPTED)
