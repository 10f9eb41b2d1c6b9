"""`TaskOperations`: the episodes of a task, which an evaluator pays for."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Never

from repl_env.concurrency.offload import BlockingCall
from repl_env.env.lifecycle.current_episode import CurrentEpisode, Mode
from repl_env.env.lifecycle.episode_slot import EpisodeSlot
from repl_env.env.lifecycle.operations import EpisodeOperations
from repl_env.episode.effects import Effects
from repl_env.episode.session_effects import CellEffect, OnOutput
from repl_env.errors import EpisodeAborted, NotReset, REPLError
from repl_env.models import REPLAction, REPLObservation
from repl_env.tasks.episodes.evaluation_runs import EvaluationRuns, Pay
from repl_env.tasks.submission import MOST_FILE
from repl_env.tasks.submission_evaluator import Evaluator
from repl_env.tasks.task import Task
from repl_sandbox.errors import SandboxError

_INSIDE = Path(__file__).parents[1] / "session_code" / "task_functions.py"


class TaskOperations:
    """Episodes with the starter files of the task of `evaluator`, and with its pay.

    Each observation tells in its metadata the task, the evaluation so far and the `group_id`; the
    files in the workspace at the end are the submission, if none was handed in.
    """

    def __init__(self, episodes: EpisodeOperations, evaluator: Evaluator, pay: Pay) -> None:
        self._episodes, self._evaluator, self._pay = episodes, evaluator, pay
        self.run: EvaluationRuns | None = None
        self._group = ""
        episodes.scorer.before = self._evaluated
        self.giving_up, self.leaving = episodes.giving_up, episodes.leaving

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

    def resetting(
        self, mode: Mode, given: tuple[Any, ...], more: Mapping[str, Any]
    ) -> Effects[REPLObservation]:
        """Begin an episode; `more` may have a `group_id`."""
        asked = dict(more)
        group = _group(asked.pop("group_id", None))
        asked["files"] = self._evaluator.task.starter_files()
        observation = yield from self._episodes.resetting(mode, given, asked)
        self.run, self._group = EvaluationRuns(self._evaluator, self._pay), group
        current = self.slot.begun()
        try:
            yield from _preparing(current, self._evaluator.task)
        except BaseException:
            yield from self.slot.abandoning(current)
            raise
        self._note(observation)
        return observation

    def stepping(
        self,
        mode: Mode,
        action: REPLAction,
        timeout_s: float | None,
        more: Mapping[str, Any],
        on_output: OnOutput | None = None,
    ) -> Effects[REPLObservation]:
        """Take an action, for at most as long as the task allows."""
        limit = self._evaluator.task.limits.cell if timeout_s is None else timeout_s
        return (yield from self._episodes.stepping(mode, action, limit, more, on_output))

    def _evaluated(self, current: CurrentEpisode, observation: REPLObservation) -> Effects[None]:
        """Note the pay of a step, before it is scored."""
        if observation.done:
            current.latch(observation)
            yield from self._handing_in(current)
        broken = self.running.broken
        if isinstance(broken, SandboxError):
            yield from self.slot.abandoning(current)
            raise EpisodeAborted("sandbox", f"an evaluation was lost: {broken}") from broken
        if broken is not None:
            raise broken
        observation.metadata["task_reward"] = self.running.pay()
        self._note(observation)

    def _handing_in(self, current: CurrentEpisode) -> Effects[None]:
        files: dict[str, bytes] = {}
        if self.running.submitted is None:
            paths = self._evaluator.task.submission
            most = (MOST_FILE + 1) * max(len(paths), 1)
            found: Mapping[str, bytes | OSError] = yield partial(
                current.session.files.get_all, paths, limit=most
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

    def following(self, *_: object) -> Never:
        """Refused."""
        raise _without("is followed by another")

    def saving(self, *_: object) -> Never:
        """Refused."""
        raise _without("is saved")

    def loading(self, *_: object) -> Never:
        """Refused."""
        raise _without("is loaded")

    def branching(self, *_: object) -> Never:
        """Refused."""
        raise _without("branches")


def _without(what: str) -> REPLError:
    return REPLError(f"no episode of a task {what}: its evaluations are counted once")


def _preparing(current: CurrentEpisode, task: Task) -> Effects[None]:
    """Make the two functions that a policy calls."""
    session = current.session
    yield partial(session.set, "_task_paths", list(task.submission))
    yield partial(session.set, "_task_most", MOST_FILE)
    outcome = yield CellEffect(session.run, _INSIDE.read_text(encoding="utf-8"), timeout=None)
    if not outcome.ok:
        raise RuntimeError(f"{task.name}: the session does not begin: {outcome.error}")


def _group(given: object) -> str:
    if not (given is None or isinstance(given, str)):
        raise TypeError(f"group_id must be a str, not {type(given).__name__}")
    return given or uuid.uuid4().hex
