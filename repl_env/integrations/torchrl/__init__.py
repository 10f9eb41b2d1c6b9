"""TorchRL: chat environments and transforms over sessions.

Needs `pip install 'repl-env[torchrl]'`. A name loads TorchRL when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from repl_env.integrations.torchrl.torchrl_imports import needing_torchrl

if TYPE_CHECKING:
    from repl_env.integrations.torchrl.chat.chat_env import DatasetREPLChatEnv, REPLChatEnv
    from repl_env.integrations.torchrl.chat.task_primer import TaskPrimer
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
    from repl_env.integrations.torchrl.reward_signals import log_masked_share
    from repl_env.integrations.torchrl.tool_transform import REPLToolTransform

_NAMES_BY_MODULE = {
    "repl_env.integrations.torchrl.chat.chat_env": ("DatasetREPLChatEnv", "REPLChatEnv"),
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
        "get_args",
        "make_mlgym",
    ),
    "repl_env.integrations.torchrl.chat.task_primer": ("TaskPrimer",),
    "repl_env.integrations.torchrl.reward_signals": ("log_masked_share",),
    "repl_env.integrations.torchrl.tool_transform": ("REPLToolTransform",),
}

__all__ = [
    "ConditionalSkip",
    "DatasetREPLChatEnv",
    "EvaluationOutputParser",
    "IsolateCodeBlock",
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
    "log_masked_share",
    "make_mlgym",
]

__getattr__, __dir__ = needing_torchrl(__name__, _NAMES_BY_MODULE)
