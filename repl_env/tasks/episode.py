"""`TaskEnv`: episodes of a task. The policy writes files, validates them and hands them in."""

from __future__ import annotations

import uuid
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from repl_env.arguments import one_of
from repl_env.environment import REPLEnvironment
from repl_env.errors import NotReset
from repl_env.interfaces import Transform
from repl_env.models import (
    DEFAULT_MAX_OUTPUT_LENGTH,
    REPLAction,
    REPLObservation,
    REPLState,
    StepResult,
    action_of,
    result_of,
)
from repl_env.rubrics import Rubric
from repl_env.tasks.evaluator import Evaluation, Evaluator
from repl_env.tasks.submission import MOST_FILE
from repl_env.tasks.task import Task
from repl_env.tasks.task_run import Pay, TaskRun
from repl_sandbox import Sandbox

_INSIDE = Path(__file__).with_name("inside") / "episode.py"
_PAID = "task"  # the name of the task's part among the reward's


class TaskEnv:
    """Episodes of one task, each in a session of its own.

    `reset` puts the starter files and the data into the workspace and tells the instruction. In a
    cell, `validate()` returns the score of the submission's files as they are; `submit()` hands
    them in and ends the episode. An episode that ends otherwise hands in what is in the workspace.

    Each observation's metadata have `task` (name, metric, direction, group, split, difficulty),
    `evaluation` and `group_id`, which `reset` takes, or makes anew.

    Args:
        task: what `repl_env.tasks.load` returns.
        pay: "submit": the reward is 0 until the end, and then the gain of what was handed in;
            "improvement": what raises the best gain so far pays the difference, at each step.
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
        pay: Pay = "submit",
        sandbox: Sandbox | None = None,
        isolation: str = "auto",
        require: str | None = None,
        max_output_length: int = DEFAULT_MAX_OUTPUT_LENGTH,
    ) -> None:
        one_of(pay, ("submit", "improvement"), "pay")
        self.task = task
        self.pay: Pay = pay
        self._evaluator = Evaluator(task, sandbox=sandbox, isolation=isolation, require=require)
        self._run: TaskRun | None = None
        self._group = ""
        self._env = REPLEnvironment(
            task_prompt=task.prompt,
            max_iterations=task.limits.steps,
            max_output_length=max_output_length,
            rubric=_TaskRubric(),
            tools={"validate_files": self._validate, "submit_files": self._submit},
            answers="strict",
            transform=_Evaluated(self),
        )
        self._env.take_from(self._evaluator.source)

    def reset(
        self,
        *,
        seed: int | None = None,
        episode_id: str | None = None,
        group_id: str | None = None,
        max_iterations: int | None = None,
    ) -> StepResult[REPLObservation]:
        """Begin an episode. `group_id` names the group of samples that the episode is one of."""
        run = TaskRun(self._evaluator, self.pay)
        observation = self._env.reset(
            seed=seed,
            episode_id=episode_id,
            files=self.task.starter_files(),
            max_iterations=max_iterations,
        )
        self._run, self._group = run, group_id or uuid.uuid4().hex
        session = self._env.session
        session.set("_task_paths", list(self.task.submission))
        session.set("_task_most", MOST_FILE)
        outcome = session.run(_INSIDE.read_text(encoding="utf-8"))
        if not outcome.ok:
            raise RuntimeError(f"{self.task.name}: the session does not begin: {outcome.error}")
        self._note(observation)
        return result_of(observation)

    def step(
        self, action: REPLAction, *, timeout_s: float | None = None
    ) -> StepResult[REPLObservation]:
        """Run the action's code; an answer hands in what is in the workspace.

        Raises:
            EvaluatorError: the task's evaluator failed; nothing was scored.
            NotReset, EpisodeDone, EpisodeAborted: as `LocalREPLEnv.step`.
        """
        limit = self.task.limits.cell if timeout_s is None else timeout_s
        observation = self._env.step(action, limit)
        if (broken := self._running.broken) is not None:
            raise broken
        return result_of(observation)

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
    def evaluation(self) -> Evaluation | None:
        """The evaluation of what was handed in, else of what was validated last."""
        return self._running.submitted or self._running.last

    def close(self) -> None:
        """Close the session. A sandbox that was given or is shared stays open."""
        self._env.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<TaskEnv {self.task.name} {self._env._condition}>"

    @property
    def _running(self) -> TaskRun:
        if self._run is None:
            raise NotReset
        return self._run

    def _validate(self, files: Any) -> Any:
        return self._running.validate(files)

    def _submit(self, files: Any) -> Any:
        return self._running.submit(files)

    def _note(self, observation: REPLObservation) -> None:
        observation.metadata |= {
            "task": self.task.facts,
            "evaluation": self._running.facts(),
            "group_id": self._group,
        }

    def _hand_in(self) -> None:
        """The end: the files in the workspace are the submission, if none was handed in."""
        run, files = self._running, {}
        if run.submitted is None:
            for path in self.task.submission:
                try:
                    files[path] = self.session.files.get(path)
                except (OSError, ValueError):
                    continue  # it is missing, or no regular file: a failure of the submission's
        try:
            run.end(files)
        except RuntimeError:
            return  # `run.broken` says why, and `step` raises it


class _Evaluated(Transform[REPLObservation]):
    """Evaluates at the end, before the step is scored."""

    def __init__(self, env: TaskEnv) -> None:
        self._env = env

    def __call__(self, observation: REPLObservation) -> REPLObservation:
        env = self._env
        if env._run is None:
            return observation
        if observation.done:
            env._hand_in()
        observation.metadata["task_reward"] = env._running.pay()
        env._note(observation)
        return observation


class _TaskRubric(Rubric):
    """The task's pay, which the host has noted in the metadata."""

    def forward(self, action: Any, observation: Any) -> float:
        return float(observation.metadata.pop("task_reward", 0.0))

    def components(self) -> dict[str, float]:
        return {} if self.last_score is None else {_PAID: self.last_score}
