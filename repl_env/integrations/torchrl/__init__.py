"""TorchRL: chat environments and transforms over sessions.

Needs `pip install 'repl-env[torchrl]'`. A name loads TorchRL when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from repl_env.integrations.torchrl.first_use import needing_torchrl

if TYPE_CHECKING:
    from repl_env.integrations.torchrl.chat import REPLChatEnv
    from repl_env.integrations.torchrl.dataset_chat import DatasetREPLChatEnv
    from repl_env.integrations.torchrl.mlgym.actions import ConditionalSkip, IsolateCodeBlock
    from repl_env.integrations.torchrl.mlgym.base import MLGymBaseTransform
    from repl_env.integrations.torchrl.mlgym.chat import TemplateTransform
    from repl_env.integrations.torchrl.mlgym.config import get_args
    from repl_env.integrations.torchrl.mlgym.make import make_mlgym
    from repl_env.integrations.torchrl.mlgym.messages import (
        MessageToHistory,
        ReadState,
        StateToMessage,
    )
    from repl_env.integrations.torchrl.mlgym.resets import ResetModule, TaskSampler
    from repl_env.integrations.torchrl.mlgym.rewards import (
        EvaluationOutputParser,
        MLGymRewardAssignment,
    )
    from repl_env.integrations.torchrl.mlgym.wrapper import MLGymWrapper
    from repl_env.integrations.torchrl.task_primer import TaskPrimer
    from repl_env.integrations.torchrl.tool_transform import REPLToolTransform

_MODULES = {
    "chat": ["REPLChatEnv"],
    "dataset_chat": ["DatasetREPLChatEnv"],
    "task_primer": ["TaskPrimer"],
    "tool_transform": ["REPLToolTransform"],
    "mlgym.actions": ["ConditionalSkip", "IsolateCodeBlock"],
    "mlgym.base": ["MLGymBaseTransform"],
    "mlgym.chat": ["TemplateTransform"],
    "mlgym.config": ["get_args"],
    "mlgym.make": ["make_mlgym"],
    "mlgym.messages": ["MessageToHistory", "ReadState", "StateToMessage"],
    "mlgym.resets": ["ResetModule", "TaskSampler"],
    "mlgym.rewards": ["EvaluationOutputParser", "MLGymRewardAssignment"],
    "mlgym.wrapper": ["MLGymWrapper"],
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
