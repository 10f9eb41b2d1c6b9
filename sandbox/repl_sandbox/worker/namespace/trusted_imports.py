"""Imports of the engine after code of the session has run.

They find the same modules as in the template, whatever the code has put into its folders,
`sys.path` or `sys.meta_path`: a `difflib.py` in the workspace does not replace the library's. Other
threads meanwhile import as usual.
"""

from __future__ import annotations

import importlib
import sys
from _thread import get_ident
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

from .pristine_library import use_copies
from .workspace_modules import MODULES

_modules = sys.modules
_import_module = importlib.import_module


class _Library:
    """A finder that uses the template's finders on the template's path."""

    def __init__(self) -> None:
        self._thread = 0  # the thread whose imports it serves; 0: none
        self._path: list[str] = []
        self._finders: list[Any] = []
        # The library's modules whose names the session's own modules have.
        self._displaced: dict[str, ModuleType] = {}

    def note(self) -> None:
        """In a template: record the current modules and finders as the library."""
        self._path, self._finders = list(sys.path), list(sys.meta_path)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Implement importlib.abc.MetaPathFinder; raise for no module, so no finder follows."""
        if get_ident() != self._thread:
            return None
        for finder in self._finders:
            places = self._path if path is None and finder is PathFinder else path
            spec: ModuleSpec | None = finder.find_spec(name, places, target)
            if spec is not None:
                return spec
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    @contextmanager
    def only(self) -> Iterator[None]:
        """Let this thread import from the library alone."""
        if self._thread == get_ident():
            yield
            return
        found = MODULES.found.copy()  # a copy, because threads may import meanwhile
        replaced = {name: _modules.pop(name) for name in found if name in _modules}
        _modules.update(
            {name: self._displaced[name] for name in replaced if name in self._displaced}
        )
        finders = sys.meta_path
        finders.insert(0, self)
        self._thread = get_ident()
        try:
            yield
        finally:
            self._thread = 0
            with suppress(ValueError):  # session code has removed it
                finders.remove(self)
            self._displaced.update({name: _modules[name] for name in replaced if name in _modules})
            _modules.update(replaced)


_library = _Library()
_imported: dict[str, ModuleType] = {}
note_library = _library.note
from_library = _library.only


def import_trusted(name: str) -> Any:
    """Return the module `name` of the library or of this package, for the engine's own use."""
    module = _imported.get(name)
    if module is None:
        with from_library():
            module = _imported[name] = _import_module(name)
        use_copies()
    return module


def loaded_class(module: str, name: str) -> type | None:
    """Return a class of the library if it is loaded and code has not replaced it."""
    kind = getattr(loaded(module), name, None)
    return kind if issubclass(type(kind), type) else None


def loaded(name: str) -> Any:
    """Return the library's module `name` if it has been imported by anyone, else None."""
    saved = _imported.get(name)
    return saved if saved is not None or name in MODULES.found else _modules.get(name)
