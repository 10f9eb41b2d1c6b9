"""The MLGym pipeline of TorchRL, over tasks in sessions (docs/torchrl.md).

```python
from repl_env.integrations.torchrl.mlgym import make_mlgym

env = make_mlgym(task="blotto", reward_wrong_format=-0.1)
step = env.reset()
step["text_response"] = "Let me look.\\n```python\\nprint(validate())\\n```"
print(env.step(step)["next", "message"])
env.close()
```
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from repl_env.integrations.torchrl.first_use import needing_torchrl

if TYPE_CHECKING:
    from repl_env.integrations.torchrl.mlgym.actions import ConditionalSkip, IsolateCodeBlock
    from repl_env.integrations.torchrl.mlgym.base import MLGymBaseTransform
    from repl_env.integrations.torchrl.mlgym.chat import TemplateTransform
    from repl_env.integrations.torchrl.mlgym.config import (
        AgentArguments,
        AgentConfig,
        EnvironmentArguments,
        ModelArguments,
        StateCommand,
        TaskArguments,
        get_args,
    )
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
    from repl_env.integrations.torchrl.mlgym.task_gym import TaskGym
    from repl_env.integrations.torchrl.mlgym.wrapper import MLGymWrapper

__all__ = [
    "AgentArguments",
    "AgentConfig",
    "ConditionalSkip",
    "EnvironmentArguments",
    "EvaluationOutputParser",
    "IsolateCodeBlock",
    "MLGymBaseTransform",
    "MLGymRewardAssignment",
    "MLGymWrapper",
    "MessageToHistory",
    "ModelArguments",
    "ReadState",
    "ResetModule",
    "StateCommand",
    "StateToMessage",
    "TaskArguments",
    "TaskGym",
    "TaskSampler",
    "TemplateTransform",
    "get_args",
    "make_mlgym",
]

__getattr__, __dir__ = needing_torchrl(
    __name__,
    {
        "actions": ("ConditionalSkip", "IsolateCodeBlock"),
        "base": ("MLGymBaseTransform",),
        "chat": ("TemplateTransform",),
        "config": (
            "AgentArguments",
            "AgentConfig",
            "EnvironmentArguments",
            "ModelArguments",
            "StateCommand",
            "TaskArguments",
            "get_args",
        ),
        "make": ("make_mlgym",),
        "messages": ("MessageToHistory", "ReadState", "StateToMessage"),
        "resets": ("ResetModule", "TaskSampler"),
        "rewards": ("EvaluationOutputParser", "MLGymRewardAssignment"),
        "task_gym": ("TaskGym",),
        "wrapper": ("MLGymWrapper",),
    },
)
