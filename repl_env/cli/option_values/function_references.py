"""Functions that the command line names: `module:function` or `FILE.py:function`."""

from __future__ import annotations

import hashlib
import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import typer


@dataclass(frozen=True, slots=True)
class FunctionReference:
    """A function, and a digest of the file that it stands in ("" if it stands in none)."""

    function: Callable[..., Any]
    digest: str


def named(reference: str, option: str) -> FunctionReference:
    """Return the function that `reference` names; modules may be in the current folder.

    Raises:
        typer.BadParameter: for `option`, saying what is wrong.
    """
    where, _, name = reference.rpartition(":")
    if not where or not name.isidentifier():
        raise _wrong(
            option, f"{reference!r} is not of the form module:function or FILE.py:function"
        )
    try:
        module = _of_file(Path(where)) if where.endswith(".py") else _of_name(where)
        function = getattr(module, name, None)
    # Boundary: importing runs the user's code, which may raise anything.
    except Exception as error:
        raise _wrong(option, f"{reference}: {type(error).__name__}: {error}") from error
    if function is None:
        raise _wrong(option, f"{where} has no function {name!r}")
    if not callable(function):
        raise _wrong(option, f"{reference} is {type(function).__name__}, not a function")
    file = getattr(module, "__file__", None)
    return FunctionReference(
        function, hashlib.sha256(Path(file).read_bytes()).hexdigest() if file else ""
    )


def _of_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    spec = spec_from_file_location(f"_repl_env_cli_{path.stem}", path)
    assert spec is not None  # a path that ends with .py has one
    module = module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and pickle look for it there
    # Not by the loader: its cache of bytecode takes two texts of one second and size for the same.
    exec(compile(path.read_bytes(), path, "exec"), module.__dict__)
    return module


def _of_name(name: str) -> ModuleType:
    # A console script has its own folder on the path, not the one it is called in.
    if "" not in sys.path:
        sys.path.insert(0, "")
    return importlib.import_module(name)


def _wrong(option: str, message: str) -> typer.BadParameter:
    return typer.BadParameter(message, param_hint=f"'{option}'")
