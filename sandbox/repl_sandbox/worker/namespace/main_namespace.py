"""State between the cells of a session: the `__main__` module and the engine's objects in it.

Cells run in the dictionary of a real module that is registered as `__main__`: pickle, dataclasses,
multiprocessing and `typing.get_type_hints` look names up there.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import TYPE_CHECKING

from ...protocol.values.variable_names import REPL_NAMES

if TYPE_CHECKING:
    import asyncio
    from ast import Module

_MISSING = object()


class Namespace:
    """A fresh `__main__`, registered in `sys.modules`.

    `future`: compiler flags of the `from __future__` statements so far. `loop`: the event loop of
    top-level `await`, made on first use. `offers_loop`: whether code that does not await may start
    tasks on the loop. `protected`: objects that `restore` puts back. `check`: a language policy's
    function that takes a cell's syntax tree, and returns the one to run or raises.
    """

    __slots__ = (
        "_shown",
        "check",
        "future",
        "globals",
        "injected",
        "loop",
        "module",
        "offers_loop",
        "protected",
    )

    def __init__(self) -> None:
        self.module = ModuleType("__main__")
        self.globals: dict[str, object] = self.module.__dict__
        self.globals["__builtins__"] = builtins
        self.future = 0
        self.check: Callable[[Module], Module] | None = None
        self.loop: asyncio.AbstractEventLoop | None = None
        self.offers_loop = False
        self.injected: dict[str, object] = {}
        self.protected: dict[str, object] = {}
        self._shown: object = _MISSING
        sys.modules["__main__"] = self.module

    def inject(self, name: str, value: object, *, protected: bool = False) -> None:
        """Put an object of the engine under `name`, where it is no variable of the user's.

        The user may overwrite or delete it, and owns the new value. With `protected`, `restore`
        puts the object back.
        """
        self.globals[name] = value
        self.injected[name] = value
        if protected:
            self.protected[name] = value
        else:
            self.protected.pop(name, None)

    def restore(self) -> list[str]:
        """Put the protected names back, and return those that were missing or overwritten."""
        restored = []
        present = self.globals.get
        for name, value in self.protected.items():
            if present(name) is not value:
                self.globals[name] = value
                restored.append(name)
        return restored

    @property
    def hidden(self) -> set[str]:
        """Return the injected names that still hold the injected object."""
        present = self.globals.get
        return {name for name, value in self.injected.items() if present(name, None) is value}

    def variables(self) -> Iterator[tuple[str, object]]:
        """Yield the user's variables, in the order in which their names were first bound.

        Objects of the engine, `_`, and names with double underscores at both ends are not the
        user's. Keys of the dictionary that are not plain str have no name in code, and are left
        out.
        """
        # A copy, because threads of the user may bind names meanwhile; copying is one C call.
        for name, value in self.globals.copy().items():
            if not self.hides(name, value):
                yield name, value

    def hides(self, name: object, value: object) -> bool:
        """Return whether the value under `name` in `globals` is no variable of the user's."""
        if type(name) is not str or self.injected.get(name, _MISSING) is value:
            return True
        return name[:1] == "_" and (name in REPL_NAMES or (name[:2] == "__" == name[-2:]))

    def show(self, value: object) -> None:
        """Bind a displayed `value` to `_`, unless the user keeps a value of their own there."""
        previous = self.globals.get("_", _MISSING)
        if previous is _MISSING or previous is self._shown:
            self.globals["_"] = self._shown = value
