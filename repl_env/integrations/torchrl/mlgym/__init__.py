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

from repl_env.integrations.torchrl.torchrl_imports import needing_torchrl

if TYPE_CHECKING:
    from repl_env.integrations.torchrl.mlgym.action_transforms import (
        ConditionalSkip,
        IsolateCodeBlock,
    )
    from repl_env.integrations.torchrl.mlgym.gym_task import TaskGym
    from repl_env.integrations.torchrl.mlgym.gym_wrapper import MLGymWrapper
    from repl_env.integrations.torchrl.mlgym.mlgym_config import (
        AgentArguments,
        AgentConfig,
        EnvironmentArguments,
        ModelArguments,
        StateCommand,
        TaskArguments,
        get_args,
    )
    from repl_env.integrations.torchrl.mlgym.pipeline import make_mlgym
    from repl_env.integrations.torchrl.mlgym.reset_module import ResetModule, TaskSampler
    from repl_env.integrations.torchrl.mlgym.reward_transforms import (
        EvaluationOutputParser,
        MLGymRewardAssignment,
    )
    from repl_env.integrations.torchrl.mlgym.state_messages import (
        MessageToHistory,
        ReadState,
        StateToMessage,
    )
    from repl_env.integrations.torchrl.mlgym.template_transform import TemplateTransform
    from repl_env.integrations.torchrl.mlgym.transform_base import MLGymBaseTransform

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

_NAMES_BY_MODULE = {
    "repl_env.integrations.torchrl.mlgym.action_transforms": (
        "ConditionalSkip",
        "IsolateCodeBlock",
    ),
    "repl_env.integrations.torchrl.mlgym.transform_base": ("MLGymBaseTransform",),
    "repl_env.integrations.torchrl.mlgym.template_transform": ("TemplateTransform",),
    "repl_env.integrations.torchrl.mlgym.mlgym_config": (
        "AgentArguments",
        "AgentConfig",
        "EnvironmentArguments",
        "ModelArguments",
        "StateCommand",
        "TaskArguments",
        "get_args",
    ),
    "repl_env.integrations.torchrl.mlgym.pipeline": ("make_mlgym",),
    "repl_env.integrations.torchrl.mlgym.state_messages": (
        "MessageToHistory",
        "ReadState",
        "StateToMessage",
    ),
    "repl_env.integrations.torchrl.mlgym.reset_module": (
        "ResetModule",
        "TaskSampler",
    ),
    "repl_env.integrations.torchrl.mlgym.reward_transforms": (
        "EvaluationOutputParser",
        "MLGymRewardAssignment",
    ),
    "repl_env.integrations.torchrl.mlgym.gym_task": ("TaskGym",),
    "repl_env.integrations.torchrl.mlgym.gym_wrapper": ("MLGymWrapper",),
}

__getattr__, __dir__ = needing_torchrl(__name__, _NAMES_BY_MODULE)
