"""Environments of many tasks: of a set, behind OpenEnv's interfaces, and of rows side by side."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from repl_env.common.display import set_module
from repl_env.common.values import one_of
from repl_env.env.current_episode import Mode
from repl_env.env.outcomes import Requests
from repl_env.env.vector import REPLVectorEnv
from repl_env.errors import NotReset
from repl_env.interfaces import Environment, EnvironmentMetadata
from repl_env.local import LocalREPLEnv
from repl_env.models import DEFAULT_MAX_OUTPUT_LENGTH, REPLAction, REPLObservation, REPLState
from repl_env.tasks.episodes import REWARD_MODES, RewardMode, TaskEnvironment
from repl_env.tasks.submission import Evaluator, SubmissionEvaluation
from repl_env.tasks.task import Task, TaskSet
from repl_sandbox import Sandbox

# `TaskSetEnvironment`: episodes of a set's tasks behind OpenEnv's interfaces.


@set_module("repl_env.tasks")
class TaskSetEnvironment(Environment[REPLAction, REPLObservation, REPLState]):
    """Episodes of any task of a set, chosen at reset, with OpenEnv's methods for finding tasks.

    ```python
    env = TaskSetEnvironment(shipped())
    print(env.num_tasks("train"), env.get_task("train", 0)["name"])
    first = env.reset(split="train", index=0)
    env.close()
    ```
    `repl_server.app.create_app(environment=lambda: TaskSetEnvironment(tasks))` serves it, with
    the HTTP routes of OpenEnv's task interface. Steps and observations are those of `TaskEnv`.

    Args:
        tasks: the tasks of the set.
        reward_mode, sandbox, isolation, require, max_output_length: as for `TaskEnv`.

    Raises:
        TypeError, ValueError: naming the argument.
    """

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(
        self,
        tasks: TaskSet,
        *,
        reward_mode: RewardMode = "submit",
        sandbox: Sandbox | None = None,
        isolation: str = "auto",
        require: str | None = None,
        max_output_length: int = DEFAULT_MAX_OUTPUT_LENGTH,
    ) -> None:
        if not isinstance(tasks, TaskSet):
            raise TypeError(f"tasks must be a TaskSet, not {type(tasks).__name__}")
        one_of(reward_mode, REWARD_MODES, "reward_mode")
        super().__init__()
        self.tasks = tasks
        self.list_splits, self.num_tasks = tasks.list_splits, tasks.num_tasks
        self.list_tasks, self.get_task = tasks.list_tasks, tasks.get_task
        self.get_task_range = tasks.get_task_range
        self._reward_mode: RewardMode = reward_mode
        self._sandbox = {"sandbox": sandbox, "isolation": isolation, "require": require}
        self._max_output_length = max_output_length
        self._current: TaskEnvironment | None = None

    def reset(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        *,
        split: str | None = None,
        index: int | None = None,
        task: str | None = None,
        group_id: str | None = None,
        max_iterations: int | None = None,
        **_: Any,
    ) -> REPLObservation:
        """Begin an episode of the task `index` of `split`, or of the one named `task`.

        Raises:
            ValueError: the arguments name no task.
            TaskError: the task cannot be run here.
        """
        chosen = self._chosen(split, index, task)
        if self._current is None or self._current.task is not chosen:
            self.close()
            self._current = TaskEnvironment(
                Evaluator(chosen, **self._sandbox),  # type: ignore[arg-type]  # by name, as above
                reward_mode=self._reward_mode,
                max_output_length=self._max_output_length,
            )
        return self._current.reset(
            seed=seed, episode_id=episode_id, group_id=group_id, max_iterations=max_iterations
        )

    def _chosen(self, split: str | None, index: int | None, name: str | None) -> Task:
        if name is not None and split is None and index is None:
            if name not in self.tasks:
                raise ValueError(f"task must be a name of the set, not {name!r}")
            return self.tasks[name]
        if split is None or index is None or name is not None:
            raise ValueError("a reset needs split and index of a task, or its name as task")
        tasks = self.tasks.in_split(split)
        if not 0 <= index < len(tasks):
            raise ValueError(f"index must be from 0 to {len(tasks) - 1}, not {index}")
        return tasks[index]

    def step(self, action: REPLAction, timeout_s: float | None = None, **_: Any) -> REPLObservation:
        """Run the action's code; see `TaskEnv.step`."""
        return self._running().step(action, timeout_s)

    @property
    def state(self) -> REPLState:
        """The episode so far; NotReset if none has begun."""
        return self._running().state

    def close(self) -> None:
        """Close the session of the current episode."""
        if self._current is not None:
            self._current.close()

    def get_metadata(self) -> EnvironmentMetadata:
        """Return the name and the number of tasks."""
        return EnvironmentMetadata(
            name=type(self).__name__, description=f"Python tasks with evaluators: {len(self.tasks)}"
        )

    def _running(self) -> TaskEnvironment:
        if self._current is None:
            raise NotReset("no episode has begun: call reset(split=..., index=...) first")
        return self._current


# `TaskVectorEnv`: episodes of one task, or of several, stepped side by side.


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
