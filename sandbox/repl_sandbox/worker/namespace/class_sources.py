"""Which cell a class is from, for `inspect.getsource`: a class names its module, and no file."""

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
    """Have `inspect` find the classes of cells; done once, in the template."""
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
    """The cell with the source of `cls`; None if that is not kept, or may be one of several."""
    cells = {
        cell_sources.cell_name(number): text
        for number, text in cell_sources.kept()
        if _defines(text, cls)
    }
    for code in _codes(cls):
        if code.co_filename in cells and code.co_qualname.startswith(f"{cls.__qualname__}."):
            return code.co_filename
    return next(iter(cells)) if len(cells) == 1 else None


def _codes(cls: type) -> Iterator[CodeType]:
    """The code of what a class statement defines."""
    for value in vars(cls).values():
        function = getattr(value, "fget", None) or getattr(value, "__func__", value)
        if type(function) is FunctionType:
            yield function.__code__


def _defines(text: str, cls: type) -> bool:
    """Whether a cell has a class of this name, at the line that `cls` is from if it tells."""
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
    """Every class below `node`: its qualified name, and the line of it or its first decorator."""
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
