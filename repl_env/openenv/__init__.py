"""The environment and its client on OpenEnv's own base classes (extra `openenv`).

Names are loaded when they are first used: the client needs no engine, and OpenEnv's core takes
seconds to import. Nothing else of repl-env needs OpenEnv; docs/openenv.md says what for this is.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from repl_env.first_use import on_first_use

try:
    import_module("openenv")  # light: its own names are lazy
except ImportError as error:
    raise ImportError(
        "repl_env.openenv needs OpenEnv, which is not installed: pip install 'repl-env[openenv]'"
    ) from error

if TYPE_CHECKING:
    from repl_env.openenv.client import REPLEnv
    from repl_env.openenv.environment import REPLEnvironment
    from repl_env.openenv.models import REPLAction, REPLObservation, REPLState

__all__ = ["REPLAction", "REPLEnv", "REPLEnvironment", "REPLObservation", "REPLState"]

_NAMES_BY_MODULE = {
    "client": ("REPLEnv",),
    "environment": ("REPLEnvironment",),
    "models": ("REPLAction", "REPLObservation", "REPLState"),
}

__getattr__, __dir__ = on_first_use(__name__, _NAMES_BY_MODULE)
