"""`repl-env COMMAND`: collects the commands that the installed distributions offer.

A command is an entry point of the group `repl_env.commands`. It is either a function that typer
can wrap or a `typer.Typer` with commands of its own. Its module is imported for every call of
`repl-env`, so it imports what is heavy inside the function.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from copy import copy
from importlib.metadata import EntryPoint, entry_points
from typing import Annotated

import typer

from . import completion
from .command_help import HelpCommand, HelpGroup
from .config.configurable import configurable
from .exit_status import ExitStatus
from .standard_streams import FULL, give_up_stdout, hold_streams

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
        app.add_typer(_uniform(command), name=point.name, cls=HelpGroup)
    else:
        app.command(point.name, cls=HelpCommand)(configurable(command))


def _uniform(app: typer.Typer) -> typer.Typer:
    """Return a copy of a group whose commands have the help and `--config` of all others."""
    made = copy(app)
    made.registered_commands = [copy(each) for each in app.registered_commands]
    for each in made.registered_commands:
        each.cls = HelpCommand
        if each.callback is not None:
            each.callback = configurable(each.callback)
    made.registered_groups = [copy(each) for each in app.registered_groups]
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
    completion.prepare()
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
