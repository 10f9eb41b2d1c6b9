"""`TaskOperations`: the episodes of a task, whose rewards an evaluator finds."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Never

from repl_env.concurrency.offload import BlockingCall
from repl_env.env.lifecycle.current_episode import CurrentEpisode, Mode
from repl_env.env.lifecycle.episode_slot import EpisodeSlot
from repl_env.env.lifecycle.operations import EpisodeOperations
from repl_env.episode.effects import Effects
from repl_env.episode.session_effects import CellEffect, OnOutput
from repl_env.errors import EpisodeAborted, NotReset, REPLError
from repl_env.models import REPLAction, REPLObservation
from repl_env.tasks.episodes.evaluation_runs import EvaluationRuns, RewardMode
from repl_env.tasks.submission import MAX_FILE
from repl_env.tasks.submission_evaluator import Evaluator
from repl_sandbox.errors import SandboxError

if TYPE_CHECKING:
    from repl_env.tasks.task import Task

_SESSION_FUNCTIONS = Path(__file__).parents[1] / "session_code" / "task_functions.py"


class TaskOperations:
    """Episodes with the starter files of the task of `evaluator`, and with its rewards.

    Each observation tells in its metadata the task, the evaluation so far and the `group_id`; the
    files in the workspace at the end are the submission, if none was handed in.
    """

    def __init__(
        self, episodes: EpisodeOperations, evaluator: Evaluator, reward_mode: RewardMode
    ) -> None:
        self._episodes, self._evaluator, self._reward_mode = episodes, evaluator, reward_mode
        self.run: EvaluationRuns | None = None
        self._group = ""
        episodes.scorer.before_scoring = self._settle_step
        self.give_up, self.close_current = episodes.give_up, episodes.close_current

    @property
    def slot(self) -> EpisodeSlot:
        """The slot of the current episode."""
        return self._episodes.slot

    @property
    def running(self) -> EvaluationRuns:
        """The evaluations of this episode; NotReset if none has begun."""
        if self.run is None:
            raise NotReset
        return self.run

    def begin_episode(self, mode: Mode, arguments: Mapping[str, Any]) -> Effects[REPLObservation]:
        """Begin an episode; `arguments` may have a `group_id`."""
        options = dict(arguments)
        group = _group(options.pop("group_id", None))
        options["files"] = self._evaluator.task.starter_files()
        observation = yield from self._episodes.begin_episode(mode, options)
        self.run, self._group = EvaluationRuns(self._evaluator, self._reward_mode), group
        current = self.slot.require_current()
        try:
            yield from _define_functions(current, self._evaluator.task)
        except BaseException:
            yield from self.slot.abandon(current)
            raise
        self._note(observation)
        return observation

    def take_step(
        self,
        mode: Mode,
        action: REPLAction,
        timeout_s: float | None,
        extra_arguments: Mapping[str, Any],
        on_output: OnOutput | None = None,
    ) -> Effects[REPLObservation]:
        """Take an action, for at most as long as the task allows."""
        limit = self._evaluator.task.limits.cell if timeout_s is None else timeout_s
        return (
            yield from self._episodes.take_step(mode, action, limit, extra_arguments, on_output)
        )

    def _settle_step(self, current: CurrentEpisode, observation: REPLObservation) -> Effects[None]:
        """Note the reward of a step, before it is scored."""
        if observation.done:
            current.record_end(observation)
            yield from self._submit_workspace(current)
        infrastructure_error = self.running.infrastructure_error
        if isinstance(infrastructure_error, SandboxError):
            yield from self.slot.abandon(current)
            raise EpisodeAborted(
                "sandbox", f"an evaluation was lost: {infrastructure_error}"
            ) from infrastructure_error
        if infrastructure_error is not None:
            raise infrastructure_error
        observation.metadata["task_reward"] = self.running.take_due_reward()
        self._note(observation)

    def _submit_workspace(self, current: CurrentEpisode) -> Effects[None]:
        files: dict[str, bytes] = {}
        if self.running.submitted is None:
            paths = self._evaluator.task.submission
            max_bytes = (MAX_FILE + 1) * max(len(paths), 1)
            found: Mapping[str, bytes | OSError] = yield partial(
                current.session.files.get_all, paths, limit=max_bytes
            )
            # One that is missing, or no regular file, is a failure of the submission's.
            files = {path: each for path, each in found.items() if isinstance(each, bytes)}
        yield BlockingCall(self.running.end, files)

    def _note(self, observation: REPLObservation) -> None:
        observation.metadata |= {
            "task": self._evaluator.task.facts,
            "evaluation": self.running.facts(),
            "group_id": self._group,
        }

    def follow_up(self, *_: object) -> Never:
        """Refused."""
        raise _refusal("is followed by another")

    def save(self, *_: object) -> Never:
        """Refused."""
        raise _refusal("is saved")

    def load(self, *_: object) -> Never:
        """Refused."""
        raise _refusal("is loaded")

    def rollback(self, *_: object) -> Never:
        """Refused."""
        raise _refusal("rolls back")

    def branch(self, *_: object) -> Never:
        """Refused."""
        raise _refusal("branches")


def _refusal(operation: str) -> REPLError:
    return REPLError(f"no episode of a task {operation}: its evaluations are counted once")


def _define_functions(current: CurrentEpisode, task: Task) -> Effects[None]:
    """Make the two functions that a policy calls."""
    session = current.session
    yield partial(session.set, "_task_paths", list(task.submission))
    yield partial(session.set, "_task_max_bytes", MAX_FILE)
    outcome = yield CellEffect(
        session.run, _SESSION_FUNCTIONS.read_text(encoding="utf-8"), timeout=None
    )
    if not outcome.ok:
        raise RuntimeError(f"{task.name}: the session does not begin: {outcome.error}")


def _group(positional: object) -> str:
    if not (positional is None or isinstance(positional, str)):
        raise TypeError(f"group_id must be a str, not {type(positional).__name__}")
    return positional or uuid.uuid4().hex
