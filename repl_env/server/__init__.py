"""The module names of OpenEnv's `repl_env.server`; what they export is defined elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

from repl_env.common.lazy_imports import lazy_exports

if TYPE_CHECKING:
    from repl_env.env.environment import REPLEnvironment
    from repl_env.server.python_executor import PythonExecutor

__all__ = [
    "PythonExecutor",
    "REPLEnvironment",
]

_NAMES_BY_MODULE = {
    "repl_env.env.environment": ("REPLEnvironment",),
    "repl_env.server.python_executor": ("PythonExecutor",),
}

__getattr__, __dir__ = lazy_exports(__name__, _NAMES_BY_MODULE)
