"""`MLGymWrapper`: a task environment, ours or MLGym's own, as one of TorchRL's."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from tensordict import NonTensorData, TensorDict, TensorDictBase
from torchrl.data import Categorical, Composite, NonTensor, Unbounded
from torchrl.envs import GymWrapper

from repl_env.common.display import set_module
from repl_env.common.values import one_of
from repl_env.integrations.torchrl.mlgym.foreign_scores import MLGymScores
from repl_env.integrations.torchrl.mlgym.mlgym_config import AgentArguments
from repl_env.integrations.torchrl.mlgym.transform_base import goes_on

# The keys that a step writes beside reward and done.
_TEXTS = {
    "observation": "<output of the code>",
    "evaluation": {"improvement": 0.0},
    "task": "<a task>",
}


@set_module("repl_env.integrations.torchrl")
class MLGymWrapper(GymWrapper):
    """One episode at a time of a task environment in Gymnasium's shape: batch size ().

    Reads `text_response`, the code to run; with `skip` True it takes a step that counts and runs
    nothing, and shows `format_error`. Writes `observation`, `evaluation` (facts about the score),
    `task` and `mask` (whether a failure of the infrastructure touched the episode).

    Args:
        env: a `TaskGym`, or an environment of MLGym's. A reset may give an observation or a pair, a
            step four values or five.
        make_env: from the name of a task to its environment, for `choose`.
        direction: whether more of MLGym's scores is better: "maximize" or "minimize".
        kwargs: those of `GymWrapper`.
    """

    def __init__(
        self,
        env: Any = None,
        *,
        make_env: Callable[[str], Any] | None = None,
        direction: str = "maximize",
        **kwargs: Any,
    ) -> None:
        one_of(direction, ("maximize", "minimize"), "direction")
        self.__dict__.update(_make_env=make_env, _direction=direction)
        self.__dict__.update(_rng=random.Random(), _seeded=False, _scores=None)
        super().__init__(env, **kwargs)
        self.set_env()

    def set_env(self, env: Any = None) -> None:
        """Take `env` in place of the environment, if one is given. Nothing of it is changed."""
        if env is not None:
            self._env = env
        self.__dict__["_scores"] = None

    def choose(self, task: str) -> None:
        """Take the environment of the task of this name; the one before is closed."""
        if self._make_env is None:
            if task != self.task_name:
                raise ValueError(f"no task {task!r}: this environment has {self.task_name!r} alone")
            return
        chosen = self._make_env(task)
        if chosen is not self._env:
            self._env.close()
            self.set_env(chosen)

    @property
    def task_name(self) -> str:
        """The name of the task."""
        args = getattr(getattr(self._env, "task", None), "args", None)
        return str(getattr(args, "id", None) or getattr(args, "name", None) or "")

    @property
    def agent_args(self) -> Any:
        """The agent's arguments; the default ones where the environment has none."""
        found = getattr(self._env, "agent_args", None)
        return AgentArguments() if found is None else found

    @property
    def rng(self) -> random.Random:
        """The random numbers of this environment, which `set_seed` seeds."""
        rng: random.Random = self._rng
        return rng

    def _set_seed(self, seed: int | None) -> None:
        self._rng.seed(seed)
        self.__dict__["_seeded"] = seed is not None

    def _make_specs(self, env: Any, batch_size: Any = None) -> None:
        self.done_spec = self._make_done_spec()
        self.full_action_spec = Composite(
            text_response=NonTensor(example_data="<a string>", shape=(), device=self.device)
        )
        texts = {
            name: NonTensor(example_data=example, shape=(), device=self.device)
            for name, example in _TEXTS.items()
        }
        mask = Categorical(2, dtype=torch.bool, shape=(1,), device=self.device)
        self.full_observation_spec = Composite(**texts, mask=mask)
        self.full_reward_spec = Composite(reward=Unbounded(shape=(1,), device=self.device))

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        if goes_on(tensordict):
            return self.full_observation_spec.zero().update(self.full_done_spec.zero())
        seed = self._rng.getrandbits(31) if self._seeded else None
        arguments = kwargs if seed is None or not self._is_ours else {"seed": seed, **kwargs}
        result = self._env.reset(**arguments)
        pair = isinstance(result, tuple) and len(result) == 2
        observation, info = result if pair else (result, {})
        if not self._is_ours:
            self.__dict__["_scores"] = MLGymScores(self._env.task.args, self._direction)
        return self._written(observation, info)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        if bool(tensordict.get("skip", False)):
            result = self._without_code(str(tensordict["format_error"]))
        else:
            result = self._env.step(str(tensordict["text_response"]))
        if len(result) == 4:
            observation, reward, terminated, info = result
            truncated = bool(info.get("TimeLimit.truncated", False))
            terminated = terminated and not truncated
        else:
            observation, reward, terminated, truncated, info = result
        written = self._written(observation, info)
        flags = {"terminated": terminated, "truncated": truncated, "done": terminated or truncated}
        for name, value in flags.items():
            written[name] = torch.tensor([bool(value)], device=self.device)
        written["reward"] = torch.tensor([float(reward)], device=self.device)
        return written

    @property
    def _is_ours(self) -> bool:
        return hasattr(self._env, "step_without_code")

    def _without_code(self, error: str) -> tuple[Any, ...]:
        """A step that runs nothing. MLGym's environment counts none itself, so it is done here."""
        if self._is_ours:
            result: tuple[Any, ...] = self._env.step_without_code(error)
            return result
        self._env.current_step += 1
        over = self._env.current_step >= self._env.max_steps
        return error, 0.0, False, over, {}

    def _written(self, observation: Any, info: Any) -> TensorDictBase:
        info = info or {}
        scores: MLGymScores | None = self._scores
        evaluation = info["evaluation"] if scores is None else scores.evaluation(info)
        texts = {
            "observation": "" if observation is None else str(observation),
            "evaluation": evaluation,
            "task": self.task_name,
        }
        written: dict[str, Any] = {
            name: NonTensorData(value, device=self.device) for name, value in texts.items()
        }
        written["mask"] = torch.tensor([bool(info.get("mask", False))], device=self.device)
        return TensorDict(written, batch_size=self.batch_size, device=self.device)
