"""TorchRL: chat environments and transforms over sessions.

Needs `pip install 'repl-env[torchrl]'`. A name loads TorchRL when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from repl_env.common.lazy_imports import lazy_exports
from repl_env.integrations import TORCHRL, needing

if TYPE_CHECKING:
    from repl_env.integrations.torchrl.chat import DatasetREPLChatEnv, REPLChatEnv
    from repl_env.integrations.torchrl.chat_tasks import TaskPrimer
    from repl_env.integrations.torchrl.mlgym import (
        ConditionalSkip,
        EvaluationOutputParser,
        IsolateCodeBlock,
        MessageToHistory,
        MLGymBaseTransform,
        MLGymRewardAssignment,
        MLGymWrapper,
        ReadState,
        ResetModule,
        StateToMessage,
        TaskSampler,
        TemplateTransform,
        get_args,
        make_mlgym,
    )
    from repl_env.integrations.torchrl.results import EpisodeReward, LogEpisodes
    from repl_env.integrations.torchrl.tools import REPLToolTransform

_NAMES_BY_MODULE = {
    "repl_env.integrations.torchrl.chat": ("DatasetREPLChatEnv", "REPLChatEnv"),
    "repl_env.integrations.torchrl.mlgym": (
        "ConditionalSkip",
        "EvaluationOutputParser",
        "IsolateCodeBlock",
        "MessageToHistory",
        "MLGymBaseTransform",
        "MLGymRewardAssignment",
        "MLGymWrapper",
        "ReadState",
        "ResetModule",
        "StateToMessage",
        "TaskSampler",
        "TemplateTransform",
        "make_mlgym",
    ),
    "repl_env.integrations.torchrl.chat_tasks": ("TaskPrimer",),
    "repl_env.integrations.torchrl.mlgym_config": ("get_args",),
    "repl_env.integrations.torchrl.results": ("EpisodeReward", "LogEpisodes"),
    "repl_env.integrations.torchrl.tools": ("REPLToolTransform",),
}

__all__ = [
    "ConditionalSkip",
    "DatasetREPLChatEnv",
    "EpisodeReward",
    "EvaluationOutputParser",
    "IsolateCodeBlock",
    "LogEpisodes",
    "MLGymBaseTransform",
    "MLGymRewardAssignment",
    "MLGymWrapper",
    "MessageToHistory",
    "REPLChatEnv",
    "REPLToolTransform",
    "ReadState",
    "ResetModule",
    "StateToMessage",
    "TaskPrimer",
    "TaskSampler",
    "TemplateTransform",
    "get_args",
    "make_mlgym",
]

_load, __dir__ = lazy_exports(__name__, _NAMES_BY_MODULE)


def __getattr__(name: str) -> object:
    with needing(*TORCHRL):
        return _load(name)
