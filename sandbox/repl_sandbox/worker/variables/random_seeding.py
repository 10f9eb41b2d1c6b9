"""Random numbers of each session: without seeding, all sessions share the template's state."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any

from ..namespace.trusted_imports import import_trusted, loaded

_NUMPY = "numpy.random"


def seed(number: int | None) -> None:
    """Seed `random` and NumPy with `number`; None: with entropy of the system.

    NumPy is seeded also if a cell imports it later.
    """
    if number is not None or loaded("random") is not None:
        import_trusted("random").seed(number)  # a fork is cheaper with a smaller template
    _Seeder.leave()
    numpy = loaded("numpy")
    if numpy is not None:
        _start(numpy.random, number)
    elif number is not None:
        sys.meta_path.insert(0, _Seeder(number))


def _start(generator: Any, number: int | None) -> None:
    # NumPy takes 32 bits.
    generator.seed(None if number is None else number & 0xFFFF_FFFF)


class _Seeder:
    """Finds NumPy's random module like other finders, and seeds it when it is loaded."""

    def __init__(self, number: int) -> None:
        self._number = number

    @classmethod
    def leave(cls) -> None:
        """Remove seeding finders from the list, which session code may change."""
        sys.meta_path[:] = [each for each in sys.meta_path if not isinstance(each, cls)]

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Implement a finder; None for all other modules."""
        if name != _NUMPY:
            return None
        spec = PathFinder.find_spec(name, path, target)
        loader: Any = None if spec is None else spec.loader
        if loader is None:
            return None
        load = loader.exec_module

        def exec_module(module: Any) -> None:
            del loader.exec_module  # an ordinary loader again, for code that asks it for sources
            self.leave()
            load(module)
            _start(module, self._number)

        loader.exec_module = exec_module
        return spec
