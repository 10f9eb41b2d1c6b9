"""The environment and its client on OpenEnv's own base classes (extra `openenv`).

Names are loaded when they are first used: the client needs no engine, and OpenEnv's core takes
seconds to import. Nothing else of repl-env needs OpenEnv; docs/openenv.md says what for this is.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from repl_env.common.lazy_imports import lazy_exports

try:
    import_module("openenv")  # light: its own names are lazy
except ImportError as error:
    raise ImportError(
        "repl_env.openenv needs OpenEnv, which is not installed: pip install 'repl-env[openenv]'"
    ) from error

if TYPE_CHECKING:
    from repl_env.integrations.openenv.openenv_client import REPLEnv
    from repl_env.integrations.openenv.openenv_environment import REPLEnvironment
    from repl_env.integrations.openenv.openenv_models import REPLAction, REPLObservation, REPLState

__all__ = [
    "REPLAction",
    "REPLEnv",
    "REPLEnvironment",
    "REPLObservation",
    "REPLState",
]

_NAMES_BY_MODULE = {
    "repl_env.integrations.openenv.openenv_client": ("REPLEnv",),
    "repl_env.integrations.openenv.openenv_environment": ("REPLEnvironment",),
    "repl_env.integrations.openenv.openenv_models": (
        "REPLAction",
        "REPLObservation",
        "REPLState",
    ),
}

__getattr__, __dir__ = lazy_exports(__name__, _NAMES_BY_MODULE)
