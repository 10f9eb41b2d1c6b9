"""OpenEnv's name for the module of `PythonExecutor`."""

from __future__ import annotations

from repl_env.env.code_executor import PythonExecutor

__all__ = ["PythonExecutor"]
