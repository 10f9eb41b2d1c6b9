"""Start method of multiprocessing in a session: fork, as on Linux up to CPython 3.13.

From 3.14 on, multiprocessing would start a server process whose children import the program's main
module from its file. A session has no such file: a function of a cell could not be found there, and
`Pool` would start failing workers for ever. The reason for the change in CPython is programs with
threads; a session has none but those of its code, and its code may choose any method.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

_CONTEXT_MODULE = "multiprocessing.context"


class _MultiprocessingFinder:
    """Finds multiprocessing like other finders, and selects the start method on import."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Implement importlib.abc.MetaPathFinder."""
        if name != _CONTEXT_MODULE:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return None
        loader: Any = spec.loader
        execute = loader.exec_module

        def execute_and_choose(module: Any) -> None:
            execute(module)
            # A private name, but `set_start_method` would use up the one choice that a program has.
            module._default_context._default_context = module._concrete_contexts["fork"]

        loader.exec_module = execute_and_choose
        return spec


def start_by_fork() -> None:
    """Select fork in this process and its forks; call before multiprocessing is imported."""
    if sys.version_info >= (3, 14):
        sys.meta_path.insert(0, _MultiprocessingFinder())
