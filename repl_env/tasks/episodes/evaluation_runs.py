"""`EvaluationRuns`: one episode's evaluations, and the rewards for them.

Nothing here is in the session. A policy reaches it by `validate()` and `submit()`, whose arguments
are the files of a submission and nothing else.
"""

from __future__ import annotations

import base64
import binascii
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from repl_env.tasks.submission import MAX_FILE
from repl_env.tasks.submission_evaluator import Evaluator, SubmissionEvaluation
from repl_sandbox.types import JSON

if TYPE_CHECKING:
    from repl_env.tasks.task import Task

RewardMode: TypeAlias = Literal["submit", "improvement"]
REWARD_MODES: tuple[RewardMode, ...] = ("submit", "improvement")


class EvaluationRuns:
    """The evaluations of one episode of a task.

    `reward_mode`: "submit" rewards the end, with the gain of the submission; "improvement" rewards
    each step, with its increase of the best gain so far, which begins at the baseline's, 0.
    """

    def __init__(self, evaluator: Evaluator, reward_mode: RewardMode) -> None:
        self.task: Task = evaluator.task
        self._evaluator, self._reward_mode = evaluator, reward_mode
        self._lock = threading.Lock()  # cells may have threads
        self._validations = 0
        self._best = 0.0
        self._pending_reward = 0.0
        self.last: SubmissionEvaluation | None = None
        self.submitted: SubmissionEvaluation | None = None
        self.infrastructure_error: Exception | None = None

    def validate(self, files: Mapping[str, str]) -> dict[str, JSON]:
        """Evaluate the files that a cell sends; what it is told of that."""
        with self._lock:
            self._check_open()
            if self._validations >= self.task.limits.validations:
                raise ValueError(f"validate() was called {self._validations} times: no more")
            self._validations += 1
            return self._report(self._evaluated(_decoded(files, self.task)))

    def submit(self, files: Mapping[str, str]) -> dict[str, JSON]:
        """Hand in the files that a cell sends; the first ones count."""
        with self._lock:
            self._check_open()
            self.submitted = self._evaluated(_decoded(files, self.task))
            return self._report(self.submitted)

    def end(self, files: Mapping[str, bytes]) -> None:
        """The episode is over; without `submit()`, the files in its workspace are handed in."""
        with self._lock:
            if self.submitted is None and self.infrastructure_error is None:
                with suppress(RuntimeError):  # `infrastructure_error` says why
                    self.submitted = self._evaluated(files)
            if self._reward_mode == "submit" and self.submitted is not None:
                self._pending_reward = self.submitted.gain

    def take_due_reward(self) -> float:
        """Return the rewards that became due since the last step."""
        with self._lock:
            reward, self._pending_reward = self._pending_reward, 0.0
            return reward

    @property
    def evaluation(self) -> SubmissionEvaluation | None:
        """The evaluation of what was handed in, else of what was validated last."""
        return self.submitted or self.last

    def facts(self) -> dict[str, Any]:
        """The evaluation so far, for metadata: what the policy has been told."""
        last = self.evaluation
        return {
            "validations": self._validations,
            "score": None if last is None else last.score,
            "gain": None if last is None else last.gain,
            "failure": None if last is None else last.failure,
            "submitted": self.submitted is not None,
        }

    def _check_open(self) -> None:
        if self.submitted is not None:
            raise ValueError("a submission was handed in already; the first one counts")
        if self.infrastructure_error is not None:
            raise RuntimeError("the evaluation failed by no fault of the submission")

    def _evaluated(self, files: Mapping[str, bytes]) -> SubmissionEvaluation:
        try:
            evaluation = self._evaluator.evaluate(files)
        # Boundary: whatever it is, it is no fault of the submission's, and no score.
        except Exception as error:  # noqa: BLE001
            self.infrastructure_error = error
            # The cell learns nothing of the evaluator's; the caller of the step gets the error.
            raise RuntimeError("the evaluation failed by no fault of the submission") from None
        self.last = evaluation
        if self._reward_mode == "improvement" and evaluation.ok and evaluation.gain > self._best:
            self._pending_reward += evaluation.gain - self._best
            self._best = evaluation.gain
        return evaluation

    def _report(self, evaluation: SubmissionEvaluation) -> dict[str, JSON]:
        report: dict[str, JSON] = {
            "score": evaluation.score,
            "metric": self.task.metric,
            "direction": self.task.direction,
            "baseline": self.task.baseline,
            "validations_left": self.task.limits.validations - self._validations,
        }
        return (
            report
            if evaluation.ok
            else report | {"failure": evaluation.failure, "message": evaluation.message}
        )


def _decoded(files: object, task: Task) -> dict[str, bytes]:
    """The files that a session sent, which may be anything."""
    if not isinstance(files, Mapping):
        raise TypeError("the files of a submission must be a dict of texts in base64")
    decoded: dict[str, bytes] = {}
    for path in task.submission:
        content = files.get(path)
        if isinstance(content, str) and len(content) <= 2 * MAX_FILE:
            try:
                decoded[path] = base64.b64decode(content, validate=True)
            except (binascii.Error, ValueError) as error:
                raise ValueError(f"{path} is no base64: {error}") from None
    return decoded
