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

import math
import os
import random
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

from repl_env.common.display import set_module
from repl_env.common.values import finite, one_of
from repl_env.errors import EpisodeAborted, NotReset
from repl_env.integrations import TORCHRL, needing, session_code
from repl_env.integrations.torchrl.mlgym_config import (
    AgentArguments,
    AgentConfig,
    EnvironmentArguments,
    ModelArguments,
    StateCommand,
    TaskArguments,
    as_fields,
    get_args,
)
from repl_env.models import REPLAction, REPLObservation, StepResult
from repl_env.tasks import Task, TaskEnv
from repl_env.tasks.submission import MIN_GAIN, in_gain_range
from repl_sandbox.errors import SandboxError

with needing(*TORCHRL):
    import gymnasium
    import torch
    from gymnasium import spaces
    from tensordict import NonTensorData, TensorDict, TensorDictBase
    from torchrl.data import Categorical, Composite, NonTensor, Unbounded
    from torchrl.envs import GymWrapper, TransformedEnv

    from repl_env.integrations.torchrl.mlgym_transforms import (
        ConditionalSkip,
        EvaluationOutputParser,
        IsolateCodeBlock,
        MessageToHistory,
        MLGymBaseTransform,
        MLGymRewardAssignment,
        ReadState,
        ResetModule,
        StateToMessage,
        TaskSampler,
        TemplateTransform,
        goes_on,
    )

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

# `make_mlgym`: the whole pipeline over our task environment.

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


# `MLGymWrapper`: a task environment, ours or MLGym's own, as one of TorchRL's.

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


# `TaskGym`: episodes of a task in Gymnasium's shape, with MLGym's attributes.

_STATE_SECONDS = 5.0
_LOST = "The session was lost, by no fault of the code. The episode is over."


class AnyText(spaces.Text):
    """Any text, of any length, in any characters of Unicode."""

    def __init__(self) -> None:
        super().__init__(max_length=1, min_length=0)

    def contains(self, x: Any) -> bool:
        """Whether `x` is a text."""
        return isinstance(x, str)

    def __repr__(self) -> str:
        return "AnyText()"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AnyText)

    __hash__ = spaces.Space.__hash__


class TaskSpec:
    """The task of an environment; `args` are the values that templates may name."""

    def __init__(self, args: TaskArguments) -> None:
        self.args = args


class TaskGym(gymnasium.Env):
    """Episodes of one task: an action is the code of one cell, an observation its output.

    As in MLGym the reward of a step is 0: `info["evaluation"]` has what the evaluator gave, and
    `info["evaluation"]["improvement"]` how much the step raised the best gain. `info["mask"]` is
    True once something failed that is not the policy's fault.

    Pickles and copies have no session; each begins with a reset.

    Args:
        environment, agent: what `get_args` returns.
        arguments: those of `TaskEnv` (`sandbox`, `isolation`, `require`, `max_output_length`).

    Raises:
        TaskError: the task cannot be used here.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - Gymnasium's own

    def __init__(
        self, environment: EnvironmentArguments, agent: AgentArguments, **arguments: Any
    ) -> None:
        self.action_space = AnyText()
        self.observation_space = AnyText()
        self.max_steps = environment.max_steps
        self.agent_args = agent
        self.task = TaskSpec(environment.task_args)
        self.returncode = 0
        self._task = environment.task
        self._arguments = arguments
        self._env: TaskEnv | None = self._opened()
        self._over = True

    @property
    def config(self) -> AgentConfig:
        """Templates and commands."""
        return self.agent_args.config

    @property
    def current_step(self) -> int:
        """Steps that the episode has taken."""
        try:
            return self._tasks.state().iteration
        except NotReset:
            return 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Begin an episode. `options`: `group_id`, which metadata and `info` carry."""
        super().reset(seed=seed)
        group = (options or {}).get("group_id")
        result = self._tasks.reset(seed=seed, group_id=group, max_iterations=self.max_steps)
        self._over = False
        return self._task.prompt, _info(result)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Run the code `action` in the session.

        Raises:
            EvaluatorError: the task's evaluator failed; nothing was scored.
            EpisodeDone, NotReset: there is no episode to go on with.
        """
        return self._step(REPLAction(code=action))

    def step_without_code(self, error: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """A step that counts and runs nothing; `error` is what the policy is shown."""
        return self._step(REPLAction(format_error=error))

    def communicate(self, code: str) -> str:
        """The output of `code`, run in the session and no step; `returncode` tells 0 or 1.

        Once the episode is over nothing is run, and the text is empty.
        """
        self.returncode = 1
        if self._over:
            return ""
        try:
            outcome = self._tasks.session.run(code, timeout=_STATE_SECONDS)
        except SandboxError:
            return ""
        self.returncode = 0 if outcome.ok else 1
        return str(outcome.stdout)

    def set_variables(self, variables: dict[str, str]) -> None:
        """Set environment variables of the session."""
        self._tasks.session.set("_task_variables", variables)
        self._begin(session_code("environment_variables.py"), "env_variables")

    def add_commands(self, commands: list[dict[str, str]]) -> None:
        """Source the Python files in the session, and put scripts into its working directory.

        Raises:
            ValueError: a file is for a shell, or raises.
        """
        for command in commands:
            name = command["name"]
            if command["type"] == "script":
                self._tasks.session.files.put(name, command["contents"].encode("utf-8"))
            elif name.endswith(".sh"):
                raise ValueError(f"command file {name}: a Python session sources no shell files")
            else:
                self._begin(command["contents"], f"command file {name}")

    def reset_container(self) -> None:
        """Nothing: each episode has a session of its own."""

    def close(self) -> None:
        """End the session."""
        self._over = True
        if self._env is not None:
            self._env.close()

    @property
    def _tasks(self) -> TaskEnv:
        if self._env is None:
            self._env = self._opened()
        return self._env

    def _opened(self) -> TaskEnv:
        return TaskEnv(self._task, reward_mode="improvement", **self._arguments)

    def _begin(self, code: str, setting: str) -> None:
        outcome = self._tasks.session.run(code)
        if not outcome.ok:
            raise ValueError(f"{setting}: {outcome.error}")

    def _step(self, action: REPLAction) -> tuple[str, float, bool, bool, dict[str, Any]]:
        try:
            result = self._tasks.step(action)
        except (EpisodeAborted, SandboxError):
            return self._lost()
        self._over = result.done
        return _shown(result.observation), 0.0, result.terminated, result.truncated, _info(result)

    def _lost(self) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """The end of an episode whose session is gone: no fault of the policy's."""
        self._over = True
        facts = {**self._task.facts, "improvement": 0.0, "score": None, "failure": "lost"}
        return _LOST, 0.0, False, True, {"evaluation": facts, "mask": True}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_env": None, "_over": True}


def _shown(observation: REPLObservation) -> str:
    result = observation.result
    parts = (result.stdout.rstrip("\n"), result.stderr.rstrip("\n"))
    return "\n".join(part for part in parts if part)


def _info(result: StepResult[REPLObservation]) -> dict[str, Any]:
    metadata = result.observation.metadata
    evaluation = {
        **metadata["task"],
        **metadata["evaluation"],
        "group_id": metadata["group_id"],
        "improvement": float(result.task_reward or 0.0),
    }
    return {"evaluation": evaluation, "mask": bool(metadata.get("mask", False))}


# `MLGymScores`: the evaluations of MLGym's own environment, which keeps none.


class MLGymScores:
    """The evaluations of an episode of MLGym's own environment, which keeps none.

    The scores are those of `info["score"]`, which MLGym's evaluator gave; no text is read. The
    gain of a score is its distance from the baseline in units of the baseline's size, from -1 to 2.

    Args:
        task_args: the task's arguments, with `baseline_scores`.
        direction: "maximize" or "minimize"; MLGym's tasks do not say which.
    """

    def __init__(self, task_args: Any, direction: str) -> None:
        fields = as_fields(task_args) if task_args is not None else {}
        baselines = fields.get("baseline_scores") or [{}]
        self._baseline = _numbers(baselines[-1])
        self._name = str(fields.get("id") or fields.get("name") or "")
        self._direction = direction
        self._last: dict[str, Any] = {"score": None, "gain": None, "failure": None}
        self._best = 0.0

    def evaluation(self, info: Mapping[str, Any] | None) -> dict[str, Any]:
        """The facts after a step that gave `info`; `improvement`: of the best gain, by the step."""
        improvement = 0.0
        if (scores := _numbers((info or {}).get("score"))) or "score" in (info or {}):
            improvement = self._note(scores)
        metric = self._last.get("metric") or next(iter(self._baseline), "")
        return {
            "name": self._name,
            "metric": metric,
            "direction": self._direction,
            "baseline": self._baseline.get(metric),
            **{name: self._last[name] for name in ("score", "gain", "failure")},
            "improvement": improvement,
        }

    def _note(self, scores: dict[str, float]) -> float:
        metric = next((name for name in self._baseline if name in scores), None)
        metric = metric or next(iter(scores), None)
        if metric is None:
            self._last = {"score": None, "gain": MIN_GAIN, "failure": "invalid"}
            return 0.0
        gain = self._gain(scores[metric], self._baseline.get(metric, 0.0))
        self._last = {"score": scores[metric], "gain": gain, "failure": None, "metric": metric}
        improvement = max(0.0, gain - self._best)
        self._best = max(self._best, gain)
        return improvement

    def _gain(self, score: float, baseline: float) -> float:
        gained = (score - baseline) / (abs(baseline) or 1.0)
        gained = gained if self._direction == "maximize" else -gained
        return in_gain_range(gained)


def _numbers(scores: Any) -> dict[str, float]:
    """The finite numbers of a mapping, of the last mapping of a list, or of a number alone."""
    if isinstance(scores, (list, tuple)):
        scores = scores[-1] if scores else {}
    if not isinstance(scores, Mapping):
        scores = {"Score": scores}
    return {
        str(name): float(value)
        for name, value in scores.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    }
