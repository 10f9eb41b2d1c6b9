"""OpenEnv's name for the module of `REPLEnvironment`."""

from __future__ import annotations

from repl_env.env.environment import REPLEnvironment

__all__ = ["REPLEnvironment"]
