"""The values of a configuration file as defaults of a command's options."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from ..options.option_types import option_types
from .config_file import ConfigFile, config_error
from .config_trust import check_path, check_value

# Options whose texts may name a file: `NAME=FILE`, or a function of a file.
_FILES_IN_TEXT = frozenset({"context", "mount"})
_FUNCTIONS = frozenset({"model", "sub_model", "solver", "rubric"})
_FUNCTION = re.compile(r"(script:)?(?P<path>.+\.py)(?P<name>:\w+)")
_SECRET_NAMES = re.compile(r"(api[-_]?)?key|token|password|secret")


def command_path(ctx: Any) -> list[str]:
    """Return the names of the command of `ctx`, without that of the program."""
    names: list[str] = []
    while ctx.parent is not None:
        names.insert(0, ctx.info_name)
        ctx = ctx.parent
    return names


def check_tables(file: ConfigFile, root: Any) -> None:
    """Raise typer.BadParameter if a table of the file is named after no command."""
    _check_tables(file, file.tables, root.commands, [])


def _check_tables(
    file: ConfigFile, tables: Mapping[str, Any], commands: Mapping[str, Any], above: list[str]
) -> None:
    for name, table in tables.items():
        title = ".".join([*above, name])
        if not isinstance(table, dict):
            example = ".".join([*above, next(iter(commands), "run")])
            raise config_error(
                f"{file.path}: {title} stands outside of the tables of commands, "
                f"such as [{example}]"
            )
        if name not in commands:
            raise config_error(f"{file.path}: [{title}] is no command{_near(name, commands)}")
        if (below := getattr(commands[name], "commands", None)) is not None:
            _check_tables(file, table, below, [*above, name])


def defaults_of(file: ConfigFile, command: Any, names: list[str], ctx: Any) -> dict[str, Any]:
    """Return the values of the command's table, by the names of its parameters.

    Raises:
        typer.BadParameter: naming the key: unknown, of a wrong type, or not allowed.
    """
    table: Any = file.tables
    for name in names:
        table = table.get(name, {}) if isinstance(table, dict) else {}
    title = ".".join(names)
    if not isinstance(table, dict):
        raise config_error(f"{file.path}: [{title}] is not a table")
    options, kinds = _options(command), option_types(command)
    values = {}
    for key, value in table.items():
        option = options[_known(file, title, key, options)]
        place = f"{file.path}: [{title}] {key}"
        made = _value(file, place, option, value, is_path=kinds.get(option.name) is Path)
        try:
            option.process_value(ctx, made)
        # By its class only: some versions of typer have a click of their own.
        except Exception as error:
            raise config_error(f"{place}: {getattr(error, 'message', error)}") from error
        values[option.name] = made
    return values


def _options(command: Any) -> dict[str, Any]:
    """Return the options of a command by their keys, the long names without leading dashes."""
    return {
        max(option.opts, key=len).removeprefix("--"): option
        for option in command.params
        if option.param_type_name == "option" and option.name not in ("config", "help")
    }


def _known(file: ConfigFile, title: str, key: str, options: Mapping[str, Any]) -> str:
    name = key.replace("_", "-")
    if name in options:
        return name
    if _SECRET_NAMES.fullmatch(name):
        raise config_error(
            f"{file.path}: [{title}] {key}: secrets do not belong into this file; keep them in "
            "environment variables"
        )
    raise config_error(
        f"{file.path}: [{title}] {key} is no option of this command{_near(name, options)}"
    )


def _near(name: str, known: Iterable[str]) -> str:
    close = get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _value(file: ConfigFile, place: str, option: Any, value: Any, *, is_path: bool) -> Any:
    if option.is_flag:
        if not isinstance(value, bool):
            raise config_error(f"{place} must be true or false, not {value!r}")
        check_value(file, place, option.name, value)
        return value
    several = value if isinstance(value, list) else [value]
    if len(several) != 1 and not option.multiple:
        raise config_error(f"{place} takes one value, not a list")
    found = [_scalar(file, place, option, each, is_path=is_path) for each in several]
    return found if option.multiple else found[0]


def _scalar(file: ConfigFile, place: str, option: Any, value: Any, *, is_path: bool) -> Any:
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise config_error(f"{place} must be a text or a number, not {type(value).__name__}")
    check_value(file, place, option.name, value)
    if not isinstance(value, str):
        return value
    return _resolved(file, place, option, value, is_path=is_path)


def _resolved(file: ConfigFile, place: str, option: Any, value: str, *, is_path: bool) -> str:
    """Return the text with its relative path below the folder of the file."""
    head, path, tail = "", value, ""
    if option.name in _FUNCTIONS:
        if (function := _FUNCTION.fullmatch(value)) is None:
            return value
        head, path, tail = function[1] or "", function["path"], function["name"]
    elif option.name in _FILES_IN_TEXT:
        name, equals, rest = value.partition("=")
        head, path = (f"{name}{equals}", rest) if equals else ("", value)
    elif not is_path:
        return value
    if path == "-":
        return value
    whole = file.path.parent / Path(path).expanduser()
    check_path(file, place, whole)
    return f"{head}{whole}{tail}"
