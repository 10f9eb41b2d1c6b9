"""The help screens of commands: options in groups, whole phrases, readable in narrow terminals."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from .option_values.conversion_errors import naming_value
from .options.help_groups import OUTPUT
from .options.option_types import choices, option_types
from .render.copyable_text import copyable

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
        arguments = [each for each in self.params if each.param_type_name == "argument"]
        return ["[OPTIONS]", *map(argument_name, arguments)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments and options, group by group."""
        write_options(self, ctx, formatter)


class HelpGroup(TyperGroup):
    """A group of commands, with help as that of its commands."""

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
