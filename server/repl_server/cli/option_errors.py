"""Errors about the settings of a server as errors about the options that the settings come from."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import typer

# Parameters of `repl-env serve` by the fields of `Settings` and `Limits` that have other names.
_PARAMETERS = {
    "context_bytes": "max_context",
    "drain_s": "drain",
    "frame_ancestors": "frame_ancestor",
    "grace": "interrupt_grace",
    "grace_s": "grace",
    "history": "undo",
    "idle_s": "idle",
    "llm": "model",
    "llm_urls": "llm_url",
    "max_timeout_s": "max_timeout",
    "message_bytes": "max_message",
    "mounts": "mount",
    "origins": "origin",
    "trusted_proxies": "trusted_proxy",
    "uploads_bytes": "max_uploads",
    "wait_s": "wait",
}
# The first word of an error, which is the name of a field, and what the field is or must be.
_FIELD = re.compile(r"(?:limits\.)?(\w+)(=|: | must | is )(.*)", re.DOTALL)
# Fields within the text: those that no prose contains.
_MENTIONED = re.compile(r"\blimits\.(\w+)|\b([a-z]+(?:_[a-z]+)+)\b")
_ISOLATION = re.compile(r"\bisolation='(\w+)'")


def option_error(error: Exception, options: Mapping[str, Any]) -> typer.BadParameter:
    """The error about the option, with its value, that `error` about a field of settings is.

    `options`: the values by parameter. An error that begins with no field is repeated as it is.
    """
    match = _FIELD.fullmatch(str(error))
    name = "" if match is None else _parameter(match[1])
    if match is None or name not in options:
        return typer.BadParameter(_with_options(str(error), options))
    value, (_, joint, rest) = _shown(options[name]), match.groups()
    rest = _with_options(rest, options)
    if joint.strip() in ("must", "is"):  # the value stands at the end, too
        rest = f"{value}{joint}{re.sub(r', not [^,;:]*$', '', rest)}"
    elif isinstance(options[name], (int, float, str)) and str(options[name]) not in rest:
        rest = f"{value}: {rest}"
    return typer.BadParameter(rest, param_hint=_option(name))


def _parameter(field: str) -> str:
    return _PARAMETERS.get(field, field)


def _option(parameter: str) -> str:
    return f"--{parameter.replace('_', '-')}"


def _shown(value: object) -> str:
    return f"'{value:g}'" if isinstance(value, float) else repr(str(value))


def _with_options(text: str, options: Mapping[str, Any]) -> str:
    """`text` with the options in place of the fields that it mentions."""

    def option(match: re.Match[str]) -> str:
        name = _parameter(match[1] or match[2])
        return _option(name) if name in options else match[0]

    return _ISOLATION.sub(r"--isolation \1", _MENTIONED.sub(option, text))
