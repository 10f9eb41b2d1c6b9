"""`--config` of every command: its other options get their defaults from a file."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from .config_file import NAME, VARIABLE, config_file

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
    from .config_values import check_tables, command_path, defaults_of

    file = config_file(value)
    if file is not None:
        check_tables(file, ctx.find_root().command)
        ctx.default_map = defaults_of(file, ctx.command, command_path(ctx), ctx)
    return value
