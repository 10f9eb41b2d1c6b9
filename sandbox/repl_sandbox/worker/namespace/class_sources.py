"""Sources of classes in cells, for `inspect.getsource`: a class names its module, and no file."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from functools import wraps
from types import CodeType, FunctionType
from typing import Any

from . import cell_sources

_getfile = inspect.getfile


def install_lookup() -> None:
    """Make `inspect` find the classes of cells; called once, in the template."""
    inspect.getfile = _file_or_cell


@wraps(_getfile)
def _file_or_cell(object: Any) -> str:
    try:
        return _getfile(object)
    except OSError:
        cell = _cell_of(object) if isinstance(object, type) else None
        if cell is None:
            raise
        return cell


def _cell_of(cls: type) -> str | None:
    """Return the cell with the source of `cls`; None if it is not kept, or ambiguous."""
    cells = {
        cell_sources.cell_name(number): text
        for number, text in cell_sources.texts()
        if _defines(text, cls)
    }
    for code in _codes(cls):
        if code.co_filename in cells and code.co_qualname.startswith(f"{cls.__qualname__}."):
            return code.co_filename
    return next(iter(cells)) if len(cells) == 1 else None


def _codes(cls: type) -> Iterator[CodeType]:
    """Return the code objects of a class statement's definitions."""
    for value in vars(cls).values():
        function = getattr(value, "fget", None) or getattr(value, "__func__", value)
        if type(function) is FunctionType:
            yield function.__code__


def _defines(text: str, cls: type) -> bool:
    """Return whether a cell defines a class of this name, at the line of `cls` if that is known."""
    if cls.__name__ not in text:
        return False
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    lines = {line for name, line in _classes(tree, "") if name == cls.__qualname__}
    first = vars(cls).get("__firstlineno__")  # from Python 3.13 on
    return bool(lines) if first is None else first in lines


def _classes(node: ast.AST, within: str) -> Iterator[tuple[str, int]]:
    """Yield the qualified name and the line (or first decorator's) of each class below `node`."""
    for child in ast.iter_child_nodes(node):
        name = within
        if isinstance(child, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            name = f"{within}{child.name}."
        if isinstance(child, ast.ClassDef):
            first: ast.ClassDef | ast.expr = next(iter(child.decorator_list), child)
            yield f"{within}{child.name}", first.lineno
        elif name != within:
            name += "<locals>."
        yield from _classes(child, name)
