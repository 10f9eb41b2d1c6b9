"""`input` in a session, which has no terminal; `breakpoint` and `pdb` read with it.

It works as usual where code has replaced `sys.stdin`. Otherwise it fails with a sentence that names
the alternatives.
"""

from __future__ import annotations

import builtins
import sys
from types import FrameType

from ..namespace.safe_inspect import loaded_class

_NO_INPUT = "input() is not available: this session has no terminal"
_NO_DEBUGGER = (
    "a debugger needs a terminal, and this session has none: print() what is to be seen, or look "
    "at variables in the next cell, where they still are after an error"
)

_input = builtins.input
_frame = sys._getframe
_of_sys = vars(sys).get


def do_without() -> None:
    """Replace `input`; called once, in the template."""
    _ask.__name__ = _ask.__qualname__ = "input"
    _ask.__module__ = "builtins"
    _ask.__doc__, _ask.__annotations__ = _input.__doc__, {}
    builtins.input = _ask


def _ask(prompt: object = "", /) -> str:
    try:
        return _input(prompt)
    except EOFError:
        if _of_sys("stdin") is not _of_sys("__stdin__"):
            raise
        if _is_of_debugger(_frame(1)):
            raise RuntimeError(_NO_DEBUGGER) from None
        raise EOFError(_NO_INPUT) from None


def _is_of_debugger(frame: FrameType) -> bool:
    """Return whether `frame`, which called `input`, is the command loop of `pdb`."""
    debugger = loaded_class("bdb", "Bdb")
    owner = type(frame.f_locals.get("self"))
    return debugger is not None and issubclass(owner, debugger)
