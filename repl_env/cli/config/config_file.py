"""The configuration file: `repl-env.toml`, or the table `tool.repl-env` of `pyproject.toml`."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

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
            may come with another person's project, and decides less (`config_trust`).
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
        content = path.read_bytes()
    except OSError:
        return None
    if f"tool.{_TABLE}".encode() not in content:
        return None
    return _tables(path, _read(path))


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
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
