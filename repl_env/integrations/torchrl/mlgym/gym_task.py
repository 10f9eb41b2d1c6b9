"""`TaskGym`: episodes of a task in Gymnasium's shape, with MLGym's attributes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
from gymnasium import spaces

from repl_env.common.display import set_module
from repl_env.errors import EpisodeAborted, NotReset
from repl_env.integrations.torchrl.mlgym.mlgym_config import (
    AgentArguments,
    AgentConfig,
    EnvironmentArguments,
    TaskArguments,
)
from repl_env.models import REPLAction, REPLObservation, StepResult
from repl_env.tasks import TaskEnv
from repl_sandbox.errors import SandboxError

_VARIABLES = Path(__file__).with_name("session_code") / "environment_variables.py"
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


@set_module("repl_env.integrations.torchrl.mlgym")
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
        self._begin(_VARIABLES.read_text(encoding="utf-8"), "env_variables")

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

    def _begin(self, code: str, instruction: str) -> None:
        outcome = self._tasks.session.run(code)
        if not outcome.ok:
            raise ValueError(f"{instruction}: {outcome.error}")

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
