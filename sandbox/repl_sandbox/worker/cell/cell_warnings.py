"""Warnings of cells: shown once in each cell, and never attributed to a file of the engine.

Python shows a warning once for each line of a file, and every cell begins at line 1. A warning
about the caller of the cell, or about something unused after it, would name the engine's module.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any

from ...types import PACKAGE_DIR
from ..namespace import cell_sources
from ..namespace.safe_inspect import module_dict

_OURS = f"{PACKAGE_DIR}/"
REGISTRY = "__warningregistry__"
_IMPLEMENTATION = "_showwarnmsg_impl"

_modules = sys.modules
_caller = sys._getframe

_show: Callable[[warnings.WarningMessage], None] = getattr(warnings, _IMPLEMENTATION)


def attribute_to_cells() -> None:
    """Show warnings as those of cells; called once, in the template."""
    # Not `warnings.showwarning`, which the user may replace, and which gets no source.
    setattr(warnings, _IMPLEMENTATION, _show_as_of_cell)


def forget_shown(globals_: dict[str, object]) -> None:
    """Show the next cell's warnings, whatever lines of earlier cells have warned of."""
    shown = globals_.get(REGISTRY)
    if type(shown) is dict:
        for key in [key for key in shown if _is_of_line(key)]:
            del shown[key]


def _is_of_line(key: object) -> bool:
    """Return whether a warning was recorded with its line, not once for all or per module."""
    return type(key) is tuple and len(key) == 3 and type(key[2]) is int and key[2] > 0


def _show_as_of_cell(message: Any) -> None:
    if "tracemalloc" not in _modules:
        # tracemalloc would be imported to ask whether it is on: during any collection, where the
        # import fails if it collects more.
        message.source = None
    if message.filename.startswith(_OURS):
        _forget_file(message.filename)
        message.filename, message.lineno = _place()
    _show(message)


def _place() -> tuple[str, int]:
    """Return the line of the running cell that began the calls, else its last line."""
    name, lines = cell_sources.latest()
    place = (name, lines)
    frame = _caller()
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_code.co_filename == name:
            place = (name, frame.f_lineno)
    return place


def _forget_file(filename: str) -> None:
    """Forget that the engine's module at `filename` has warned: it warns on behalf of all cells."""
    for module in list(_modules.values()):
        if type(module) is ModuleType:
            names = module_dict(module)
            if names.get("__file__") == filename:
                names.pop(REGISTRY, None)
