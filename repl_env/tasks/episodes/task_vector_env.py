"""`TaskVectorEnv`: episodes of one task, or of several, stepped side by side."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from repl_env.common.argument_checks import one_of
from repl_env.common.set_module import set_module
from repl_env.env.lifecycle.current_episode import Mode
from repl_env.env.local_env import LocalREPLEnv
from repl_env.env.vector.vector_env import REPLVectorEnv
from repl_env.env.vector.vector_resets import Requests
from repl_env.models import DEFAULT_MAX_OUTPUT_LENGTH
from repl_env.tasks.episodes.evaluation_runs import REWARD_MODES, RewardMode
from repl_env.tasks.episodes.task_environment import TaskEnvironment
from repl_env.tasks.submission_evaluator import Evaluator, SubmissionEvaluation
from repl_env.tasks.task import Task
from repl_sandbox import Sandbox


@set_module("repl_env.tasks")
class TaskVectorEnv(REPLVectorEnv):
    """Episodes of tasks, a row for each of `tasks`, which may have one task several times.

    ```python
    with TaskVectorEnv([load("blotto")] * 4) as envs:  # a group of four samples
        envs.reset()
        results = envs.step(["submit()"] * 4)
        print([result.reward for result in results], envs.evaluations)
    ```
    Resets, steps and results are those of `REPLVectorEnv`. A reset takes `seed`, `episode_id`,
    `group_id` and `max_iterations`; the rows of one task that are reset together without a
    `group_id` are one group. A row whose session or evaluation is lost is masked, and the others go
    on. A row whose evaluator fails is an error: its `EvaluatorError` is raised when the others have
    taken their steps.

    Args:
        tasks: of each row.
        reward_mode, sandbox, isolation, require, max_output_length: as for `TaskEnv`.

    Raises:
        TaskError, IsolationError: as `TaskEnv`.
        TypeError, ValueError: naming the argument.
    """

    _request_names = frozenset({"seed", "episode_id", "group_id", "max_iterations"})

    def __init__(
        self,
        tasks: Sequence[Task],
        *,
        reward_mode: RewardMode = "submit",
        sandbox: Sandbox | None = None,
        isolation: str = "auto",
        require: str | None = None,
        max_output_length: int = DEFAULT_MAX_OUTPUT_LENGTH,
    ) -> None:
        one_of(reward_mode, REWARD_MODES, "reward_mode")
        self.tasks = _checked(tasks)
        sandbox_arguments: dict[str, Any] = {
            "sandbox": sandbox,
            "isolation": isolation,
            "require": require,
        }
        evaluators = {
            task: Evaluator(task, **sandbox_arguments) for task in dict.fromkeys(self.tasks)
        }
        self._rows = tuple(
            TaskEnvironment(
                evaluators[task], reward_mode=reward_mode, max_output_length=max_output_length
            )
            for task in self.tasks
        )
        self._set_environments(tuple(LocalREPLEnv.of(row) for row in self._rows))

    @property
    def evaluations(self) -> tuple[SubmissionEvaluation | None, ...]:
        """By row, of what was handed in, else of what was validated last, if anything was."""
        runs = (row.run for row in self._rows)
        return tuple(None if run is None else run.evaluation for run in runs)

    def _reset_arguments(
        self,
        mode: Mode,
        requests: Requests | None,
        only: Iterable[int] | None,
        shared: Mapping[str, Any],
    ) -> dict[int, dict[str, Any]]:
        resets = super()._reset_arguments(mode, requests, only, shared)
        groups: dict[Task, str] = {}
        for row, request in resets.items():
            if request.get("group_id") is None:
                request["group_id"] = groups.setdefault(self.tasks[row], uuid.uuid4().hex)
        return resets


def _checked(tasks: object) -> tuple[Task, ...]:
    if isinstance(tasks, (str, Mapping)) or not isinstance(tasks, Iterable):
        raise TypeError(f"tasks must be a list of tasks, not {type(tasks).__name__}")
    found = tuple(tasks)
    for task in found:
        if not isinstance(task, Task):
            raise TypeError(f"tasks must be a list of tasks; there is a {type(task).__name__}")
    if not found:
        raise ValueError("tasks must not be empty")
    return found
