"""`repl-env config show`: the values that a command would use, and their sources."""

from __future__ import annotations

import json
from collections.abc import Iterator
from difflib import get_close_matches
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .config.config_file import VARIABLE, ConfigFile, config_file
from .options.output_options import AsJSON

if TYPE_CHECKING:
    from rich.console import Console

config = typer.Typer(help="Show the values of options and their sources.", no_args_is_help=True)


@config.callback()
def _group() -> None:
    """Show the values of options and their sources."""


@config.command()
def show(
    context: typer.Context,
    command: Annotated[
        list[str] | None,
        typer.Argument(
            help="A command, such as run or tasks run; without one, all that is set anywhere."
        ),
    ] = None,
    as_json: AsJSON = False,
) -> None:
    """Print each option of a command with its value and the source of the value.

    The command line comes first, then the environment, the configuration file, and the default.
    """
    file = _file(context)
    commands = dict(_commands(context.find_root().command, context.find_root(), []))
    names = " ".join(command or ())
    if command and names not in commands:
        close = get_close_matches(names, commands, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise typer.BadParameter(f"there is no command {names!r}{hint}", param_hint="COMMAND")
    chosen = {names: commands[names]} if command else commands
    rows = {
        name: [row for row in _rows(file, *each, name) if command or row["source"] != "default"]
        for name, each in chosen.items()
    }
    listed = {name: each for name, each in rows.items() if each or command}
    if as_json:
        path = None if file is None else str(file.path)
        typer.echo(json.dumps({"file": path, "commands": listed}, indent=2))
        return
    from rich.console import Console

    _print(Console(highlight=False), file, listed)


def _file(context: typer.Context) -> ConfigFile | None:
    """Return the checked file that this call names or finds."""
    from .config.config_values import check_tables

    given = context.params.get("config")
    file = config_file(None if given is None else Path(given))
    if file is not None:
        check_tables(file, context.find_root().command)
    return file


def _commands(command: Any, parent: Any, names: list[str]) -> Iterator[tuple[str, tuple[Any, Any]]]:
    """Yield each command below `command` by its names, with the context of its parent."""
    for name in command.list_commands(parent):
        each = command.get_command(parent, name)
        if hasattr(each, "commands"):
            with each.make_context(name, [], parent=parent, resilient_parsing=True) as context:
                yield from _commands(each, context, [*names, name])
        else:
            yield " ".join([*names, name]), (each, parent)


def _rows(
    file: ConfigFile | None, command: Any, parent: Any, names: str
) -> Iterator[dict[str, Any]]:
    """Yield the options of a command with value and source."""
    from .config.config_values import defaults_of

    path = names.split()
    context = command.make_context(path[-1], [], parent=parent, resilient_parsing=True)
    given = {} if file is None else defaults_of(file, command, path, context)
    with command.make_context(
        path[-1], [], parent=parent, resilient_parsing=True, default_map=given
    ) as context:
        for option in command.params:
            if option.param_type_name == "option" and option.name not in ("config", "help"):
                yield _row(file, option, context)


def _row(file: ConfigFile | None, option: Any, context: Any) -> dict[str, Any]:
    name = max(option.opts, key=len)
    value = context.params.get(option.name)
    source = context.get_parameter_source(option.name)
    match None if source is None else source.name:
        case "ENVIRONMENT":
            origin = _variable(option)
        case "DEFAULT_MAP" if file is not None:
            origin = str(file.path)
        case _:
            origin = "default"
            if value is None and isinstance(getattr(option, "show_default", None), str):
                value = option.show_default
    return {"option": name, "value": _plain(value), "source": origin}


def _variable(option: Any) -> str:
    """Return the name of the variable that gives the option its value."""
    import os

    names = [option.envvar] if isinstance(option.envvar, str) else [*(option.envvar or ())]
    return next((f"${name}" for name in names if os.environ.get(name)), "environment")


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return str(value) if isinstance(value, Path) else value


def _print(
    console: Console, file: ConfigFile | None, commands: dict[str, list[dict[str, Any]]]
) -> None:
    from .render.fitted_table import FittedTable, Heading

    where = "There is no configuration file." if file is None else f"Configuration: {file.path}"
    console.print(where, markup=False, soft_wrap=True)
    if file is not None and not file.named:
        console.print(f"It was found here; --config FILE or {VARIABLE} names another one.")
    for name, rows in commands.items():
        table = FittedTable("option", Heading("value", wraps=True), "source", title=f"\n{name}")
        for row in rows:
            table.add_row(row["option"], _shown(row["value"]), row["source"])
        console.print(table)
    if not commands:
        console.print("Every option of every command has its default.")


def _shown(value: Any) -> str:
    if value is None or value == []:
        return "-"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return json.dumps(value) if isinstance(value, bool) else str(value)
