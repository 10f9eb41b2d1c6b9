"""The module names of OpenEnv's `repl_env.server`; what they export is defined elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

from repl_env.first_use import on_first_use

if TYPE_CHECKING:
    from repl_env.environment import REPLEnvironment
    from repl_env.executor import PythonExecutor

__all__ = ["PythonExecutor", "REPLEnvironment"]

__getattr__, __dir__ = on_first_use(
    __name__,
    {"python_executor": ("PythonExecutor",), "repl_environment": ("REPLEnvironment",)},
)
