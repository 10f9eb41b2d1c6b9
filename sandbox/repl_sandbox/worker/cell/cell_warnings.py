"""Warnings of cells: each cell's are its own, and none names a file of ours.

Python shows a warning once for each line of a file, and every cell begins at line 1. What warns
about who called the cell, or is found unused after it, would name the module of ours that did.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any

from ..namespace import cell_sources
from ..namespace.safe_inspect import module_dict

_OURS = f"{os.path.dirname(os.path.dirname(os.path.dirname(__file__)))}/"
REGISTRY = "__warningregistry__"
_IMPLEMENTATION = "_showwarnmsg_impl"

_modules = sys.modules
_caller = sys._getframe

_show: Callable[[warnings.WarningMessage], None] = getattr(warnings, _IMPLEMENTATION)


def attribute_to_cells() -> None:
    """Have warnings shown as those of cells; done once, in the template."""
    # Not `warnings.showwarning`, which is the user's to replace, and is not told of a source.
    setattr(warnings, _IMPLEMENTATION, _show_as_of_cell)


def forget_shown(globals_: dict[str, object]) -> None:
    """Have the next cell's warnings shown, whatever lines of cells before it warned of."""
    shown = globals_.get(REGISTRY)
    if type(shown) is dict:
        for key in [key for key in shown if _is_of_line(key)]:
            del shown[key]


def _is_of_line(key: object) -> bool:
    """Whether a warning was noted with its line, and not by a filter for once or once a module."""
    return type(key) is tuple and len(key) == 3 and type(key[2]) is int and key[2] > 0


def _show_as_of_cell(message: Any) -> None:
    if "tracemalloc" not in _modules:
        # It would be imported to ask whether it is on: amid whatever is collected now, where it
        # fails if what it imports collects more.
        message.source = None
    if message.filename.startswith(_OURS):
        _forget_of(message.filename)
        message.filename, message.lineno = _place()
    _show(message)


def _place() -> tuple[str, int]:
    """The line of the cell that runs from which all else was called, else its last line."""
    name, lines = cell_sources.latest()
    place = (name, lines)
    frame = _caller()
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_code.co_filename == name:
            place = (name, frame.f_lineno)
    return place


def _forget_of(filename: str) -> None:
    """Have the module of ours at `filename` not hold that it warned: it warns for all cells."""
    for module in list(_modules.values()):
        if type(module) is ModuleType:
            names = module_dict(module)
            if names.get("__file__") == filename:
                names.pop(REGISTRY, None)
