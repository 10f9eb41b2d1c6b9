"""`ResetModule` and `TaskSampler`: how an episode begins, and of which task."""

from __future__ import annotations

import shlex
from pathlib import PurePosixPath
from typing import Any

from tensordict import NonTensorData, TensorDict, TensorDictBase
from torchrl.data import Composite, NonTensor
from torchrl.data.llm import History

from repl_env.common.display import set_module
from repl_env.integrations.torchrl.mlgym.command_files import read_command_files
from repl_env.integrations.torchrl.mlgym.mlgym_templates import fill
from repl_env.integrations.torchrl.mlgym.transform_base import (
    MLGymBaseTransform,
    goes_on,
    history_spec,
    text_at,
    text_spec,
)

_RANDOM = "```python\npass\n```"
_RANDOM_SHELL = "```bash\nls -rtlh\n```"


@set_module("repl_env.integrations.torchrl")
class ResetModule(MLGymBaseTransform):
    """Begins episodes: the task that a reset names, commands, variables, the system message.

    A reset with `task` in its tensordict is of that task. Writes `history`, which has the system
    message; after a step it has the policy's reply, `local_history`, behind the history before.
    """

    response_key = "text_response"

    def __init__(self) -> None:
        super().__init__(in_keys=[], out_keys=["history"])

    def _reset_env_preprocess(self, tensordict: TensorDictBase | None) -> TensorDictBase | None:
        base = self.base_env
        if goes_on(tensordict):
            return tensordict
        if tensordict is not None and "task" in tensordict:
            base.choose(text_at(tensordict, "task"))
        if hasattr(base._env, "task_workspace"):  # MLGym's own: a container that is used again
            base.reset_container()
            workspace = PurePosixPath(str(base._env.task_workspace))
            base.communicate(f"cd {shlex.quote(str(workspace.parent))}")
        return tensordict

    def _reset(
        self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase
    ) -> TensorDictBase:
        if goes_on(tensordict):
            tensordict_reset["history"] = tensordict["history"]
            return tensordict_reset
        self._equip()
        message = fill(self.config.system_template, self.fields)
        tensordict_reset["history"] = History(
            role="system", content=message, batch_size=(1,), device=self.parent.device
        )
        return tensordict_reset

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        history, reply = tensordict["history"], tensordict.get("local_history", None)
        if reply is not None:
            history = history.append(reply, inplace=False)
        next_tensordict["history"] = history
        return next_tensordict

    def _equip(self) -> None:
        """Give the session its state command, environment variables and command files."""
        base, config = self.base_env, self.config
        if config.state_command is not None:
            output = base.communicate(config.state_command.code)
            if base.returncode != 0:
                raise RuntimeError(f"the state command failed: {output}")
        variables = {name: str(value) for name, value in config.env_variables.items()}
        if hasattr(base._env, "set_variables"):
            if variables:
                base.set_variables(variables)
            base.add_commands(config.commands)
            return
        lines = [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
        if lines:
            base.communicate("\n".join(lines))
        base.add_commands(read_command_files(config.command_files))

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """With `history`."""
        observation_spec["history"] = history_spec()
        return observation_spec

    def transform_action_spec(self, action_spec: Composite) -> Composite:
        """Random actions are replies with a block that does no harm."""
        spec = action_spec[self.response_key]
        is_repl_env = hasattr(self.base_env._env, "step_without_code")
        # Not a `Choice` of several: batched environments cannot take a row of its spec.
        action_spec[self.response_key] = NonTensor(
            example_data=_RANDOM if is_repl_env else _RANDOM_SHELL,
            shape=spec.shape,
            device=spec.device,
        )
        return action_spec

    def transform_state_spec(self, state_spec: Composite) -> Composite:
        """With `history`, and the `task` that a reset may name."""
        state_spec["history"] = history_spec()
        state_spec["task"] = text_spec("<a task>", state_spec)
        return state_spec


@set_module("repl_env.integrations.torchrl")
class TaskSampler(MLGymBaseTransform):
    """Chooses the task of each episode, by the random numbers of the environment.

    A reset that names a `task`, in a tensordict without `history`, is of that task: what has a
    history goes on from an episode, and its task is that episode's.
    """

    def __init__(self, tasks: list[str]) -> None:
        super().__init__()
        self.tasks = list(tasks)

    def _reset_env_preprocess(self, tensordict: TensorDictBase | None) -> TensorDictBase:
        if tensordict is None:
            tensordict = TensorDict(batch_size=self.parent.batch_size)
        if not goes_on(tensordict) and ("task" not in tensordict or "history" in tensordict):
            chosen = self.base_env.rng.choice(self.tasks)
            tensordict["task"] = NonTensorData(chosen)
        return tensordict

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        return next_tensordict

    def _reset(
        self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase
    ) -> TensorDictBase:
        return tensordict_reset

    def transform_observation_spec(self, observation_spec: Any) -> Any:
        """With `task`, which the environment writes."""
        observation_spec["task"] = text_spec("<a task>", observation_spec)
        return observation_spec
