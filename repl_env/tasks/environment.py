"""`TaskEnvironment`: the environment of a task's episodes, played alone or beside others."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Never

from repl_env.aside import Blocking
from repl_env.cells import Cell, OnOutput
from repl_env.current_episode import CurrentEpisode, Mode
from repl_env.environment import REPLEnvironment
from repl_env.episode_steps import latch
from repl_env.errors import EpisodeAborted, NotReset, REPLError
from repl_env.models import REPLAction, REPLObservation
from repl_env.rubrics import Rubric
from repl_env.tasks.evaluator import Evaluator
from repl_env.tasks.submission import MOST_FILE
from repl_env.tasks.task import Task
from repl_env.tasks.task_run import Pay, TaskRun
from repl_env.turns import Turn
from repl_sandbox.errors import SandboxError

_INSIDE = Path(__file__).with_name("inside") / "episode.py"
_PAID = "task"  # the name of the task's part among the reward's


class TaskEnvironment(REPLEnvironment):
    """Episodes of the task of `evaluator`; the arguments are those of `TaskEnv`.

    A reset takes `group_id` besides, and begins with the task's starter files.
    """

    def __init__(self, evaluator: Evaluator, *, pay: Pay, max_output_length: int) -> None:
        task = self.task = evaluator.task
        self.pay: Pay = pay
        self._evaluator = evaluator
        self._run: TaskRun | None = None
        self._group = ""
        super().__init__(
            task_prompt=task.prompt,
            max_iterations=task.limits.steps,
            max_output_length=max_output_length,
            rubric=_TaskRubric(),
            tools={"validate_files": self._validate, "submit_files": self._submit},
            answers="strict",
        )
        self.take_from(evaluator.source)

    @property
    def running(self) -> TaskRun:
        """The evaluations of this episode; NotReset if none has begun."""
        if self._run is None:
            raise NotReset
        return self._run

    def _resetting(
        self, mode: Mode, given: tuple[Any, ...], more: Mapping[str, Any]
    ) -> Turn[REPLObservation]:
        asked = dict(more)
        group = _group(asked.pop("group_id", None))
        asked["files"] = self.task.starter_files()
        observation = yield from super()._resetting(mode, given, asked)
        self._run, self._group = TaskRun(self._evaluator, self.pay), group
        current = self._begun()
        try:
            yield from _preparing(current, self.task)
        except BaseException:
            yield from self._abandoning(current)
            raise
        self._note(observation)
        return observation

    def _stepping(
        self,
        mode: Mode,
        action: REPLAction,
        timeout_s: float | None,
        more: Mapping[str, Any],
        on_output: OnOutput | None = None,
    ) -> Turn[REPLObservation]:
        limit = self.task.limits.cell if timeout_s is None else timeout_s
        return (yield from super()._stepping(mode, action, limit, more, on_output))

    def _scoring(
        self, current: CurrentEpisode, action: REPLAction, observation: REPLObservation
    ) -> Turn[REPLObservation]:
        if observation.done:
            latch(current, observation)
            yield from self._handing_in(current)
        broken = self.running.broken
        if isinstance(broken, SandboxError):
            yield from self._abandoning(current)
            raise EpisodeAborted("sandbox", f"an evaluation was lost: {broken}") from broken
        if broken is not None:
            raise broken
        observation.metadata["task_reward"] = self.running.pay()
        self._note(observation)
        return (yield from super()._scoring(current, action, observation))

    def _handing_in(self, current: CurrentEpisode) -> Turn[None]:
        """The end: the files in the workspace are the submission, if none was handed in."""
        files: dict[str, bytes] = {}
        if self.running.submitted is None:
            paths = self.task.submission
            most = (MOST_FILE + 1) * max(len(paths), 1)
            found: Mapping[str, bytes | OSError] = yield partial(
                current.session.files.get_all, paths, limit=most
            )
            # One that is missing, or no regular file, is a failure of the submission's.
            files = {path: each for path, each in found.items() if isinstance(each, bytes)}
        yield Blocking(self.running.end, files)

    def _following(self, *_: object) -> Never:
        raise self._without("is followed by another")

    def _saving(self, *_: object) -> Never:
        raise self._without("is saved")

    def _loading(self, *_: object) -> Never:
        raise self._without("is loaded")

    def _branching(self, *_: object) -> Never:
        raise self._without("branches")

    def _without(self, what: str) -> REPLError:
        return REPLError(f"no episode of a task {what}: its evaluations are counted once")

    def _note(self, observation: REPLObservation) -> None:
        observation.metadata |= {
            "task": self.task.facts,
            "evaluation": self.running.facts(),
            "group_id": self._group,
        }

    def _validate(self, files: Any) -> Any:
        return self.running.validate(files)

    def _submit(self, files: Any) -> Any:
        return self.running.submit(files)


def _preparing(current: CurrentEpisode, task: Task) -> Turn[None]:
    """Make the two functions that a policy calls."""
    session = current.session
    yield partial(session.set, "_task_paths", list(task.submission))
    yield partial(session.set, "_task_most", MOST_FILE)
    outcome = yield Cell(session.run, _INSIDE.read_text(encoding="utf-8"), timeout=None)
    if not outcome.ok:
        raise RuntimeError(f"{task.name}: the session does not begin: {outcome.error}")


def _group(given: object) -> str:
    if not (given is None or isinstance(given, str)):
        raise TypeError(f"group_id must be a str, not {type(given).__name__}")
    return given or uuid.uuid4().hex


class _TaskRubric(Rubric):
    """The task's pay, which the host has noted in the metadata."""

    def forward(self, action: Any, observation: Any) -> float:
        return float(observation.metadata.pop("task_reward", 0.0))

    def components(self) -> dict[str, float]:
        return {} if self.last_score is None else {_PAID: self.last_score}
