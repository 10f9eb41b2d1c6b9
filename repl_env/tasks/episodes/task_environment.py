"""`TaskEnvironment`: the environment of a task's episodes, played alone or beside others."""

from __future__ import annotations

from typing import Any

from repl_env.env.environment import REPLEnvironment
from repl_env.env.lifecycle.equipment import EpisodeEquipment
from repl_env.rewards.rubric import Rubric
from repl_env.tasks.episodes.evaluation_runs import EvaluationRuns, RewardMode
from repl_env.tasks.episodes.task_operations import TaskOperations
from repl_env.tasks.submission_evaluator import Evaluator

_TASK_COMPONENT = "task"  # of the reward


class TaskEnvironment(REPLEnvironment):
    """Episodes of the task of `evaluator`; the arguments are those of `TaskEnv`.

    A reset takes `group_id` besides, and begins with the task's starter files.
    """

    def __init__(
        self, evaluator: Evaluator, *, reward_mode: RewardMode, max_output_length: int
    ) -> None:
        task = self.task = evaluator.task
        self._evaluator = evaluator
        self._reward_mode: RewardMode = reward_mode
        super().__init__(
            task_prompt=task.prompt,
            max_iterations=task.limits.steps,
            max_output_length=max_output_length,
            rubric=_TaskRubric(),
            tools={"validate_files": self._validate, "submit_files": self._submit},
            answers="strict",
        )
        self.use_sandbox_provider(evaluator.sandbox_provider)

    def _operations_with(self, equipment: EpisodeEquipment) -> TaskOperations:
        episodes = self._basic_operations_with(equipment)
        self._task = TaskOperations(episodes, self._evaluator, self._reward_mode)
        return self._task

    @property
    def running(self) -> EvaluationRuns:
        """The evaluations of this episode; NotReset if none has begun."""
        return self._task.running

    @property
    def run(self) -> EvaluationRuns | None:
        """Likewise; None if no episode has begun."""
        return self._task.run

    def _validate(self, files: Any) -> Any:
        return self.running.validate(files)

    def _submit(self, files: Any) -> Any:
        return self.running.submit(files)


class _TaskRubric(Rubric):
    """The task's reward, which the host has noted in the metadata."""

    def forward(self, action: Any, observation: Any) -> float:
        return float(observation.metadata.pop("task_reward", 0.0))

    def components(self) -> dict[str, float]:
        return {} if self.last_score is None else {_TASK_COMPONENT: self.last_score}
