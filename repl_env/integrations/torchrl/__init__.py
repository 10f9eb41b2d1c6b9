"""TorchRL: chat environments and transforms over sessions.

Needs `pip install 'repl-env[torchrl]'`. A name loads TorchRL when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from repl_env.integrations.torchrl.first_use import needing_torchrl

if TYPE_CHECKING:
    from repl_env.integrations.torchrl.chat import REPLChatEnv
    from repl_env.integrations.torchrl.dataset_chat import DatasetREPLChatEnv
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
    from repl_env.integrations.torchrl.task_primer import TaskPrimer
    from repl_env.integrations.torchrl.tool_transform import REPLToolTransform

_MODULES = {
    "chat": ["REPLChatEnv"],
    "dataset_chat": ["DatasetREPLChatEnv"],
    "task_primer": ["TaskPrimer"],
    "tool_transform": ["REPLToolTransform"],
    "mlgym": [
        "ConditionalSkip",
        "IsolateCodeBlock",
        "MLGymBaseTransform",
        "TemplateTransform",
        "get_args",
        "make_mlgym",
        "MessageToHistory",
        "ReadState",
        "StateToMessage",
        "ResetModule",
        "TaskSampler",
        "EvaluationOutputParser",
        "MLGymRewardAssignment",
        "MLGymWrapper",
    ],
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
    "make_mlgym",
]

__getattr__, __dir__ = needing_torchrl(__name__, _MODULES)
