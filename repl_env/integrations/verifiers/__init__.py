"""verifiers: tasks, an environment, tools and a harness over sessions.

Needs `pip install 'repl-env[verifiers]'`. A name loads verifiers when it is first used. In
configurations of verifiers the plugin is called `repl-env-verifiers`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from repl_env.integrations.extra_imports import exports_of_extra

if TYPE_CHECKING:
    from repl_env.integrations.verifiers.chat import REPLTaskEnv, REPLTaskEnvConfig
    from repl_env.integrations.verifiers.harness import REPLHarness, REPLHarnessConfig
    from repl_env.integrations.verifiers.record import EpisodeRecord
    from repl_env.integrations.verifiers.sessions import SessionConfig
    from repl_env.integrations.verifiers.task_request import REPLData, REPLState
    from repl_env.integrations.verifiers.tasks import (
        REPLTask,
        REPLTaskConfig,
        REPLTaskset,
        REPLTasksetConfig,
    )
    from repl_env.integrations.verifiers.toolset import REPLToolset
    from repl_env.integrations.verifiers.toolset_config import REPLToolsetConfig

_MODULES = {
    "repl_env.integrations.verifiers.chat": ["REPLTaskEnv", "REPLTaskEnvConfig"],
    "repl_env.integrations.verifiers.harness": ["REPLHarness", "REPLHarnessConfig"],
    "repl_env.integrations.verifiers.record": ["EpisodeRecord"],
    "repl_env.integrations.verifiers.sessions": ["SessionConfig"],
    "repl_env.integrations.verifiers.task_request": ["REPLData", "REPLState"],
    "repl_env.integrations.verifiers.tasks": [
        "REPLTask",
        "REPLTaskConfig",
        "REPLTaskset",
        "REPLTasksetConfig",
    ],
    "repl_env.integrations.verifiers.toolset": ["REPLToolset"],
    "repl_env.integrations.verifiers.toolset_config": ["REPLToolsetConfig"],
}

__all__ = [
    "EpisodeRecord",
    "REPLData",
    "REPLHarness",
    "REPLHarnessConfig",
    "REPLState",
    "REPLTask",
    "REPLTaskConfig",
    "REPLTaskEnv",
    "REPLTaskEnvConfig",
    "REPLTaskset",
    "REPLTasksetConfig",
    "REPLToolset",
    "REPLToolsetConfig",
    "SessionConfig",
]

__getattr__, __dir__ = exports_of_extra(
    __name__,
    _MODULES,
    "verifiers: pip install 'repl-env[verifiers]'",
    ("verifiers", "pydantic_config"),
)
