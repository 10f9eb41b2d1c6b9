"""Configuration files: values as defaults of options, trust in files, `repl-env config`."""

from __future__ import annotations

import inspect
import json
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from enum import Enum
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints
from urllib.parse import urlsplit

import typer

from repl_env.cli.options import AsJSON, option_types
from repl_env.common.files import read_regular, read_regular_text

if TYPE_CHECKING:
    from rich.console import Console


# The configuration file: `repl-env.toml`, or the table `tool.repl-env` of `pyproject.toml`.

NAME = "repl-env.toml"
VARIABLE = "REPL_ENV_CONFIG"
_PROJECT = "pyproject.toml"
_TABLE = "repl-env"


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """A configuration file that was read.

    Attributes:
        tables: the tables of commands.
        named: whether the user named the file. A file that was only found in the working directory
            may come with another person's project, and decides less.
    """

    path: Path
    tables: Mapping[str, Any]
    named: bool


def config_file(given: Path | None) -> ConfigFile | None:
    """Return the file that `given` names, else the one in the working directory; None without one.

    Raises:
        typer.BadParameter: the file cannot be read or is no TOML.
    """
    if given is not None:
        return ConfigFile(given, _tables(given, _read(given)), named=True)
    for path in (Path(NAME), Path(_PROJECT)):
        if path.is_file() and (tables := _found(path)) is not None:
            return ConfigFile(path, tables, named=False)
    return None


def _found(path: Path) -> Mapping[str, Any] | None:
    """Return the tables of a file in the working directory; None without a table of repl-env."""
    if path.name == NAME:
        return _tables(path, _read(path))
    try:
        content = read_regular(path)
    except OSError:
        return None
    if f"tool.{_TABLE}".encode() not in content:
        return None
    return _tables(path, _read(path))


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(read_regular_text(path))
    except OSError as error:
        raise config_error(f"{path}: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise config_error(f"{path} is not TOML: {error}") from error


def _tables(path: Path, content: dict[str, Any]) -> Mapping[str, Any]:
    if path.name != _PROJECT:
        return content
    tool = content.get("tool")
    tables = tool.get(_TABLE, {}) if isinstance(tool, dict) else {}
    if not isinstance(tables, dict):
        raise config_error(f"{path}: tool.{_TABLE} is not a table")
    return tables


def config_error(message: str) -> typer.BadParameter:
    """Return the usage error for a configuration file."""
    return typer.BadParameter(message, param_hint="--config")


# The values that a configuration file may have.
#
# A file that was found in the working directory may belong to a project that another person
# wrote. Such a file must not choose who gets the user's API key, which code runs outside of
# sessions, how sessions are isolated, who may use a server, or files outside of the project. A
# file that the user names may.

_SECRET = re.compile(r"(sk-|hf_|gsk_|xai-|repl_)[A-Za-z0-9_-]{16,}")
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


def _is_loopback(url: Any) -> bool:
    try:
        return urlsplit(str(url)).hostname in _LOOPBACK
    except ValueError:
        return False


def _names_no_code(value: Any) -> bool:
    """Return whether the value names no function of a file."""
    text = str(value)
    return not text.startswith("script:") and re.search(r"\.py:\w+$", text) is None


def _is_rubric_of_ours(value: Any) -> bool:
    """Return whether the value is the name of a rubric, and not `module:function`."""
    return ":" not in str(value)


def _never(value: Any) -> bool:
    return False


def _off(value: Any) -> bool:
    return value is False


# Values of parameters that a found file may have; any value of parameters that are not here.
_HARMLESS: Mapping[str, Callable[[Any], bool]] = {
    "base_url": _is_loopback,
    "llm_url": _is_loopback,
    "api_key_env": _never,
    "model": _names_no_code,
    "sub_model": _names_no_code,
    "rubric": _is_rubric_of_ours,
    "solver": _never,
    "isolation": lambda value: value in ("auto", "jailed"),
    "require": lambda value: value == "jailed",
    "image": _never,
    "runtime": _never,
    "python": _never,
    "mount": _never,
    "host": lambda value: value in _LOOPBACK,
    "api_keys": _never,
    "metrics_key": _never,
    "no_auth": _off,
    "origin": _never,
    "frame_ancestor": _never,
    "trusted_proxy": _never,
    "log_contents": _off,
    "login": _off,
    "force": _off,
    "replace": _off,
}


def check_value(file: ConfigFile, place: str, name: str, value: Any) -> None:
    """Raise typer.BadParameter if `file` may not give the parameter `name` this value.

    `place` names the key. Secrets are refused in every file, and not repeated.
    """
    if isinstance(value, str) and (_SECRET.search(value) or _has_password(value)):
        raise config_error(
            f"{place} looks like a secret; keep it in an environment variable, whose name "
            "--api-key-env gives"
        )
    if not file.named and not _HARMLESS.get(name, lambda value: True)(value):
        raise config_error(f"{place}: {_untrusted(file, 'this value')}")


def check_path(file: ConfigFile, place: str, path: Path) -> None:
    """Raise typer.BadParameter if a found file names a path outside of its folder."""
    if not file.named and not path.resolve().is_relative_to(file.path.parent.resolve()):
        raise config_error(f"{place}: {_untrusted(file, 'a path outside of its folder')}")


def _has_password(value: str) -> bool:
    try:
        return "://" in value and urlsplit(value).password is not None
    except ValueError:
        return False


def _untrusted(file: ConfigFile, what: str) -> str:
    return (
        f"a file that was found in the working directory may not give {what}, because another "
        f"person may have written the file. If you trust {file.path}, name it: "
        f"--config {file.path}, or {VARIABLE}={file.path} in the environment"
    )


# The values of a configuration file as defaults of a command's options.

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


# `--config` of every command: its other options get their defaults from a file.

_HELP = f"Configuration file; by default {NAME} or pyproject.toml in the working directory."


def configurable(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the command with an option `--config`, unless the command has no options."""
    signature = inspect.signature(function)
    # Evaluated here: typer looks for the names of annotations in the module of the wrapper.
    hints = get_type_hints(function, include_extras=True)
    parameters = [
        each.replace(annotation=hints.get(each.name, each.annotation))
        for each in signature.parameters.values()
    ]
    if not any(map(_is_option, parameters)):
        return function
    option = typer.Option(
        "--config", metavar="FILE", help=_HELP, envvar=VARIABLE, is_eager=True, callback=_load
    )
    config = inspect.Parameter(
        "config",
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[Path | None, option],
    )

    @wraps(function)
    def command(*arguments: Any, config: Path | None = None, **options: Any) -> Any:
        return function(*arguments, **options)

    command.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[*parameters, config]
    )
    command.__annotations__ = {each.name: each.annotation for each in (*parameters, config)}
    return command


def _is_option(parameter: inspect.Parameter) -> bool:
    about = getattr(parameter.annotation, "__metadata__", (parameter.default,))
    return any(type(each) is type(typer.Option()) for each in about)


def _load(ctx: typer.Context, value: Path | None) -> Path | None:
    """Set the defaults of the command; the option is eager, so that it comes before the others."""
    if ctx.resilient_parsing:  # completion, and `config show`
        return value

    file = config_file(value)
    if file is not None:
        check_tables(file, ctx.find_root().command)
        ctx.default_map = defaults_of(file, ctx.command, command_path(ctx), ctx)
    return value


# `repl-env config show`: the values that a command would use, and their sources.

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
    from repl_env.cli.tables import FittedTable, Heading

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
