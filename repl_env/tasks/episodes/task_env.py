"""`TaskEnv`: episodes of a task. The policy writes files, validates them and hands them in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from repl_env.common.argument_checks import one_of
from repl_env.common.closeable import Closeable
from repl_env.common.set_module import set_module
from repl_env.models import (
    DEFAULT_MAX_OUTPUT_LENGTH,
    REPLAction,
    REPLObservation,
    REPLState,
    StepResult,
    action_of,
    result_of,
)
from repl_env.tasks.episodes.evaluation_runs import REWARD_MODES, RewardMode
from repl_env.tasks.episodes.task_environment import TaskEnvironment
from repl_env.tasks.submission_evaluator import Evaluator, SubmissionEvaluation
from repl_sandbox import Sandbox

if TYPE_CHECKING:
    from repl_env.tasks.task import Task


@set_module("repl_env.tasks")
class TaskEnv(Closeable):
    """Episodes of one task, each in a session of its own.

    `reset` puts the starter files and the data into the workspace and tells the instruction. In a
    cell, `validate()` returns the score of the submission's files as they are; `submit()` hands
    them in and ends the episode. An episode that ends otherwise hands in what is in the workspace.

    Each observation's metadata have `task` (name, metric, direction, group, split, difficulty),
    `evaluation` and `group_id`, which `reset` takes, or makes anew.

    Args:
        task: what `repl_env.tasks.load` returns.
        reward_mode: "submit": the reward is 0 until the end, and then the gain of the submission;
            "improvement": the reward of a step is its increase of the best gain so far.
        sandbox, isolation, require: as for `LocalREPLEnv`.
        max_output_length: characters of each output that are shown.

    Raises:
        TaskError: the task has no evaluator, its packages are not there, or sessions would see it.
        IsolationError: this system cannot give the isolation that was asked for.
    """

    def __init__(
        self,
        task: Task,
        *,
        reward_mode: RewardMode = "submit",
        sandbox: Sandbox | None = None,
        isolation: str = "auto",
        require: str | None = None,
        max_output_length: int = DEFAULT_MAX_OUTPUT_LENGTH,
    ) -> None:
        one_of(reward_mode, REWARD_MODES, "reward_mode")
        self.task = task
        self.reward_mode: RewardMode = reward_mode
        evaluator = Evaluator(task, sandbox=sandbox, isolation=isolation, require=require)
        self._env = TaskEnvironment(
            evaluator, reward_mode=reward_mode, max_output_length=max_output_length
        )

    def reset(
        self,
        *,
        seed: int | None = None,
        episode_id: str | None = None,
        group_id: str | None = None,
        max_iterations: int | None = None,
    ) -> StepResult[REPLObservation]:
        """Begin an episode. `group_id` names the group of samples that the episode is one of."""
        observation = self._env.reset(
            seed=seed, episode_id=episode_id, group_id=group_id, max_iterations=max_iterations
        )
        return result_of(observation)

    def step(
        self, action: REPLAction, *, timeout_s: float | None = None
    ) -> StepResult[REPLObservation]:
        """Run the action's code; an answer hands in what is in the workspace.

        Raises:
            EvaluatorError: the task's evaluator failed; nothing was scored.
            EpisodeAborted: a session was lost, by no fault of the policy.
            NotReset, EpisodeDone: as `LocalREPLEnv.step`.
        """
        return result_of(self._env.step(action, timeout_s))

    def execute(self, code: str, *, timeout_s: float | None = None) -> StepResult[REPLObservation]:
        """One step that runs `code`."""
        return self.step(action_of(code), timeout_s=timeout_s)

    def submit(self) -> StepResult[REPLObservation]:
        """One step that hands in what is in the workspace."""
        return self.step(REPLAction(is_final=True, final_answer="submitted"))

    def state(self) -> REPLState:
        """The episode so far; NotReset if none has begun."""
        return self._env.state

    @property
    def session(self) -> Any:
        """The engine's session of this episode; NotReset if none has begun."""
        return self._env.session

    @property
    def evaluation(self) -> SubmissionEvaluation | None:
        """The evaluation of what was handed in, else of what was validated last."""
        return self._env.running.evaluation

    def close(self) -> None:
        """Close the session. A sandbox that was given or is shared stays open."""
        self._env.close()

    def __repr__(self) -> str:
        return f"<TaskEnv {self.task.name} {self._env._condition}>"
