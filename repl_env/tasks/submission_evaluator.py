"""`Evaluator`: the score of a submission, found by the task's evaluator in a session of its own.

Three sessions never meet: the policy's, the submission's, and the evaluator's. The evaluator has
four functions of the host: `call` and `read` reach the submission, `score` and `reject` say what it
came to. `score` exists in the evaluator's session alone, so no output of a submission is a score.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from repl_env.common.set_module import set_module
from repl_env.episode.sandbox_provider import SandboxProvider
from repl_env.tasks.gain_range import MIN_GAIN
from repl_env.tasks.readiness import provider_for
from repl_env.tasks.submission import Submission, SubmissionFailure
from repl_env.tasks.task_errors import EvaluatorError, TaskError
from repl_env.tasks.task_folder import EVALUATOR_FILE
from repl_sandbox import Limits, Sandbox
from repl_sandbox.errors import SandboxError
from repl_sandbox.session.session_operations import MAX_CODE
from repl_sandbox.types import JSON, AnyOutcome, Killed, TimedOut

if TYPE_CHECKING:
    from repl_env.tasks.task import Task

_MAX_MESSAGE = 2_000  # characters of an evaluator's error


@set_module("repl_env.tasks")
@dataclass(frozen=True, slots=True, kw_only=True)
class SubmissionEvaluation:
    """Result for a submission: a score, or a failure of the submission.

    Attributes:
        gain: 0 for the baseline's score, 1 for the reference's, from -1 to 2; -1 after a failure.
        failure: "missing", "exception", "timeout", "memory", "crash", "invalid" or "rejected".
        details: what the evaluator tells beside the score; for the host only.
    """

    task: str
    metric: str
    direction: str
    score: float | None
    gain: float
    failure: str | None = None
    message: str = ""
    details: Mapping[str, JSON] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether there is a score."""
        return self.score is not None


@set_module("repl_env.tasks")
class Evaluator:
    """Evaluates submissions for one task. Thread-safe: each evaluation has sessions of its own.

    `sandbox`, `isolation`, `require`: as for `LocalREPLEnv`.

    Raises:
        TaskError: the task has no evaluator, its packages are not there, or sessions would see it.
        IsolationError: this system cannot give the isolation that was asked for.
    """

    def __init__(
        self,
        task: Task,
        *,
        sandbox: Sandbox | None = None,
        isolation: str = "auto",
        require: str | None = None,
    ) -> None:
        self.task = task
        self._files = task.evaluator_files()
        self._source_code = _source_code(task, self._files[EVALUATOR_FILE])
        self.sandbox_provider = provider_for(task, sandbox, isolation=isolation, require=require)

    def evaluate(self, files: Mapping[str, bytes | str]) -> SubmissionEvaluation:
        """The evaluation of the submission `files`, by their paths in the workspace.

        Raises:
            EvaluatorError: the evaluator itself failed.
            TypeError: naming what is wrong with `files`.
            SandboxError: a session was lost by no fault of the submission.
        """
        if not isinstance(files, Mapping):
            raise TypeError(f"files must be a dict of contents, not {type(files).__name__}")
        began = time.monotonic()
        contents = {path: _bytes(path, content) for path, content in files.items()}
        submission = Submission(self.task, self.sandbox_provider, contents)
        try:
            submission.begin()
            scored = None if submission.failure else self._scored(submission)
        finally:
            submission.close()
        return self._evaluation(scored, submission.failure, time.monotonic() - began)

    def _scored(self, submission: Submission) -> ScoredSubmission | None:
        """The score; None after a failure of the submission's."""
        functions = EvaluatorFunctions(submission)
        limits = _limits(self.task, self.sandbox_provider)
        host: dict[str, Callable[..., Any]] = {
            "call": functions.call,
            "read": functions.read,
            "score": functions.score,
            "reject": functions.reject,
        }
        session = self.sandbox_provider.make(
            lambda sandbox: sandbox.session(host=host, limits=limits)
        )
        with session:
            session.files.put_all({**self._files, **self.task.data_files()})
            outcome = session.run(self._source_code)
        if functions.infrastructure_error is not None:
            raise functions.infrastructure_error
        if submission.failure is not None:
            return None
        if not outcome.ok:
            raise EvaluatorError(f"{self.task.name}: {_failure_reason(outcome, self.task)}")
        if functions.usage_error is not None:
            raise EvaluatorError(f"{self.task.name}: {functions.usage_error}")
        if functions.scored is None:
            raise EvaluatorError(f"{self.task.name}: the evaluator ended without score()")
        return functions.scored

    def _evaluation(
        self, scored: ScoredSubmission | None, failure: SubmissionFailure | None, seconds: float
    ) -> SubmissionEvaluation:
        task = self.task
        common: dict[str, Any] = {
            "task": task.name,
            "metric": task.metric,
            "direction": task.direction,
            "seconds": seconds,
        }
        if failure is not None or scored is None:
            kind, message = (failure.kind, failure.message) if failure else ("crash", "")
            return SubmissionEvaluation(
                score=None, gain=MIN_GAIN, failure=kind, message=message, **common
            )
        return SubmissionEvaluation(
            score=scored.value, gain=task.gain(scored.value), details=scored.details, **common
        )


@set_module("repl_env.tasks")
def evaluate(
    task: Task, files: Mapping[str, bytes | str], **arguments: Any
) -> SubmissionEvaluation:
    """The evaluation of one submission; the arguments are those of `Evaluator`."""
    return Evaluator(task, **arguments).evaluate(files)


@dataclass(frozen=True, slots=True)
class ScoredSubmission:
    """The score that the evaluator reported."""

    value: float
    details: Mapping[str, JSON]


class EvaluatorFunctions:
    """The four functions of the host that the evaluator's code has, and what it said by them."""

    def __init__(self, submission: Submission) -> None:
        self._submission = submission
        self._lock = threading.Lock()  # evaluators may have threads; the submission has one session
        self.scored: ScoredSubmission | None = None
        self.usage_error: str | None = None
        self.infrastructure_error: SandboxError | None = None

    def call(self, name: str, arguments: list[JSON]) -> JSON:
        """Call a function of the submission's module."""
        with self._lock:
            if self.infrastructure_error is not None:
                raise self.infrastructure_error
            try:
                return self._submission.call(name, arguments)
            except SandboxError as error:
                self.infrastructure_error = error
                raise

    def read(self, path: str) -> str:
        """The text of one of the submission's files."""
        return self._submission.read(path)

    def score(self, value: float, details: dict[str, JSON] | None = None) -> None:
        """Say the score, once; `details` are for the host."""
        with self._lock:
            if self.scored is not None:
                self.usage_error = "the evaluator called score() twice"
                raise ValueError(self.usage_error)
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                self.usage_error = f"score() takes a number, not {type(value).__name__}"
                raise TypeError(self.usage_error)
            if not isinstance(details or {}, dict):
                self.usage_error = f"score(): details must be a dict, not {type(details).__name__}"
                raise TypeError(self.usage_error)
            self.scored = ScoredSubmission(self._finite(value), dict(details or {}))

    def reject(self, reason: str) -> None:
        """Say that the submission is not one; the evaluation is over."""
        raise self._submission.reject(reason)

    def _finite(self, value: float) -> float:
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            self.usage_error = "score() takes a finite number"
            raise ValueError(self.usage_error)
        return number


def _limits(task: Task, sandbox_provider: SandboxProvider) -> Limits:
    limits = sandbox_provider.limits
    memory = limits.memory if task.limits.memory is None else task.limits.memory
    seconds = task.limits.evaluation
    return replace(
        limits,
        memory=memory,
        timeout=seconds,
        host_timeout=2 * seconds + task.limits.call + 30.0,
        output="1MiB",
    )


def _failure_reason(outcome: AnyOutcome, task: Task) -> str:
    error = outcome.error
    match outcome:
        case TimedOut(clock="execution"):
            return f"the evaluator did not end within {task.limits.evaluation:g} s"
        case TimedOut():
            return "the evaluator waited too long for its calls"
        case Killed(reason=reason):
            return f"the evaluator ended its process ({reason})"
        case _ if error is not None:
            return f"the evaluator raised {error.type}: {error.message}"[:_MAX_MESSAGE]
    return "the evaluator failed"


def _source_code(task: Task, source: bytes) -> str:
    """The evaluator's code, as a cell takes it."""
    message = f"{task.name}: {EVALUATOR_FILE} cannot be run:"
    if len(source) > MAX_CODE:
        raise TaskError(f"{message} it has more than {MAX_CODE >> 20} MiB; put data beside it")
    try:
        return source.decode("utf-8")
    except UnicodeDecodeError as error:
        raise TaskError(f"{message} {error}") from None


def _bytes(path: str, content: bytes | str) -> bytes:
    if isinstance(content, str):
        # Half a character, as a model may return: a file that is no UTF-8, and fails as that.
        return content.encode("utf-8", "surrogatepass")
    if not isinstance(content, bytes):
        raise TypeError(f"files: {path!r} must be bytes or str, not {type(content).__name__}")
    return content
