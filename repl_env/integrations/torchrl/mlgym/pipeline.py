"""`make_mlgym`: the whole pipeline over our task environment."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, TypeAlias

from torchrl.envs import TransformedEnv

from repl_env.common.display import set_module
from repl_env.common.values import finite
from repl_env.integrations.torchrl.mlgym.action_transforms import ConditionalSkip, IsolateCodeBlock
from repl_env.integrations.torchrl.mlgym.gym_task import TaskGym
from repl_env.integrations.torchrl.mlgym.gym_wrapper import MLGymWrapper
from repl_env.integrations.torchrl.mlgym.mlgym_config import AgentConfig, get_args
from repl_env.integrations.torchrl.mlgym.reset_module import ResetModule, TaskSampler
from repl_env.integrations.torchrl.mlgym.reward_transforms import MLGymRewardAssignment
from repl_env.integrations.torchrl.mlgym.state_messages import (
    MessageToHistory,
    ReadState,
    StateToMessage,
)
from repl_env.integrations.torchrl.mlgym.template_transform import TemplateTransform
from repl_env.tasks import Task

TaskName: TypeAlias = str | os.PathLike[str] | Task


@set_module("repl_env.integrations.torchrl")
def make_mlgym(
    *,
    task: TaskName | None = None,
    tasks: Iterable[TaskName] | None = None,
    tokenizer: Any = None,
    device: Any = "cpu",
    reward_wrong_format: float | None = None,
    max_steps: int | None = None,
    config: AgentConfig | None = None,
    response_key: Any = None,
    **arguments: Any,
) -> TransformedEnv:
    """Episodes of a task, or of several, for a policy that reads prompts and writes replies.

    Args:
        task: the name of a shipped task, the directory of one, or a `Task`.
        tasks: several of these; each reset chooses one, by the environment's seed.
        tokenizer: of the policy, or its name; None: there is no `text`, only `history`.
        device: of the tensors.
        reward_wrong_format: is added to the reward of a step whose reply has no code.
        max_steps: steps of an episode; None: as each task has it.
        config: templates, commands, environment variables.
        response_key: where the policy writes its reply; None: `text_response`.
        arguments: those of `TaskEnv` but `reward_mode`: `sandbox`, `isolation`, `require`,
            `max_output_length`.

    Raises:
        TypeError: `tasks` is no list.
        ValueError: both of `task` and `tasks` are given, or neither; two tasks have one name; a
            number is none that can be.
        TaskError: a task cannot be used here.
    """
    if (task is None) == (tasks is None):
        raise ValueError(f"give exactly one of task and tasks, not {task=} and {tasks=}")
    if isinstance(tasks, (str, os.PathLike, Task)):
        raise TypeError(f"tasks must be a list, not {tasks!r}; one task is given as task")
    if reward_wrong_format is not None:
        reward_wrong_format = finite(reward_wrong_format, "reward_wrong_format")
    all_tasks = [task] if tasks is None else list(tasks)
    environments = MLGymEnvironments(all_tasks, max_steps, config, arguments)
    names = list(environments.names)
    if isinstance(tokenizer, str):
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(tokenizer)
    base = MLGymWrapper(environments(names[0]), make_env=environments, device=device)
    env = TransformedEnv(base, auto_unwrap=False)
    env.append_transform(ConditionalSkip(_retry))
    env.append_transform(IsolateCodeBlock(reward_wrong_format=reward_wrong_format))
    env.append_transform(ResetModule())
    if tasks is not None:
        env.append_transform(TaskSampler(names))
    env.append_transform(ReadState())
    env.append_transform(StateToMessage())
    env.append_transform(MessageToHistory(tokenizer))
    keys = None if response_key is None else ["text", response_key]
    env.append_transform(TemplateTransform(tokenizer=tokenizer, in_keys_inv=keys))
    env.append_transform(MLGymRewardAssignment())
    return env


class MLGymEnvironments:
    """The environments of several tasks by name, each made when it is first asked for."""

    def __init__(
        self,
        tasks: list[Any],
        max_steps: int | None,
        config: AgentConfig | None,
        arguments: dict[str, Any],
    ) -> None:
        pairs = [get_args(task, max_steps=max_steps, config=config) for task in tasks]
        self._args = {environment.task.name: (environment, agent) for environment, agent in pairs}
        if not pairs or len(self._args) < len(pairs):
            raise ValueError("tasks must be tasks of different names, and at least one")
        for environment, _ in pairs:
            environment.task.evaluator_files()  # an error before the first episode
        self._arguments = arguments
        self._made: dict[str, TaskGym] = {}

    @property
    def names(self) -> Iterable[str]:
        """The names of the tasks."""
        return self._args.keys()

    def __call__(self, name: str) -> TaskGym:
        """The environment of the task of this name; ValueError if there is none."""
        if name not in self._args:
            raise ValueError(f"no task {name!r}; this environment has {', '.join(self._args)}")
        if name not in self._made:
            self._made[name] = TaskGym(*self._args[name], **self._arguments)
        return self._made[name]


def _retry(tensordict: Any) -> Any:
    return tensordict["retry"]
