"""Errors of values that typer cannot convert: the option, its value, and the allowed values."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import typer


def naming_value(error: typer.BadParameter, arguments: Sequence[str]) -> typer.BadParameter:
    """Return `error` with the value, named as the option or the variable that it comes from.

    Versions of typer that convert by pydantic leave the value out. Other errors stay as they are.
    """
    option: Any = error.param
    if option is None or option.param_type_name != "option" or error.param_hint is not None:
        return error
    details: list[dict[str, Any]] = getattr(error.__cause__, "errors", list)()
    text = _with_value(details[0]) if details else error.message
    return typer.BadParameter(text, ctx=error.ctx, param_hint=_name(option, arguments))


def _with_value(detail: dict[str, Any]) -> str:
    message = str(detail["msg"]).removeprefix("Value error, ")
    allowed = message.removeprefix("Input should be ").partition(",")[0]
    if message.startswith("Input should be "):
        return f"{str(detail['input'])!r} must be {allowed}"
    return message


def _name(option: Any, arguments: Sequence[str]) -> str:
    typed = [each.partition("=")[0] for each in arguments]
    variables = [option.envvar] if isinstance(option.envvar, str) else list(option.envvar or ())
    if not any(each in typed for each in option.opts):
        for variable in variables:
            if os.environ.get(variable):
                return str(variable)
    return str(max(option.opts, key=len))
