"""Submissions: run and scored by the task's evaluator, each in a session of its own."""

from __future__ import annotations

import builtins
import json
import math
import re
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from repl_env.common.display import set_module
from repl_env.common.files import read_regular
from repl_env.episode.sandboxes import SandboxProvider, SandboxSettings
from repl_env.errors import REPLError
from repl_sandbox import Limits, Sandbox
from repl_sandbox.errors import SandboxClosed, SandboxError
from repl_sandbox.session.core import MAX_CODE
from repl_sandbox.types import JSON, AnyOutcome, Killed, TimedOut

if TYPE_CHECKING:
    from repl_env.tasks.task import Task


# The range of gains, which rewards of tasks are made of.

# Gains are cut to this range, so that rewards have a known one. A failed submission gets the least.
MIN_GAIN, MAX_GAIN = -1.0, 2.0


def in_gain_range(gain: float) -> float:
    """Return `gain` cut to the range of gains."""
    return max(MIN_GAIN, min(MAX_GAIN, gain)) + 0.0  # never -0.0


# `Submission`: the files of a submission in a session of their own, called from the host.
#
# All that comes from there is hostile. The first failure is kept: nothing after it can mend the
# evaluation, and no further call is made.

MAX_REPLY = 4 << 20  # characters of JSON that a call may return
MAX_FILE = 16 << 20  # bytes of a submission's file
_MAX_MESSAGE = 400  # characters of an error of the submission's that is told
_CALL_CODE = (Path(__file__).with_name("session_code") / "call_submission.py").read_text
_CALL = "_reply = _repl_call(*_call)"
# Names of exceptions that a policy is told; another name may be made of what a call was given.
_TOLD_ERRORS = frozenset(
    name
    for name, value in vars(builtins).items()
    if isinstance(value, type) and issubclass(value, BaseException)
)


@dataclass(frozen=True, slots=True)
class SubmissionFailure:
    """How a submission failed; `kind` is one of "missing", "exception", "timeout", "invalid",
    "memory", "crash", "rejected".

    `message` is for the host. `told` is for the policy, and has kinds and counts alone: code of
    the submission knows the hidden inputs of its calls, and chooses every other text.
    """

    kind: str
    message: str
    told: str


class SubmissionFailed(Exception):
    """Error that the evaluator's code gets for a failure; it cannot continue after it."""


class Submission:
    """A submission for `task` in a session from `sandbox_provider`. Closed by `close`."""

    def __init__(
        self, task: Task, sandbox_provider: SandboxProvider, files: Mapping[str, bytes]
    ) -> None:
        self._task, self._files = task, files
        self.failure: SubmissionFailure | None = None
        self.was_used = False  # the evaluator has got a reply or a file
        self._calls = 0
        self._seconds_left = task.limits.evaluation
        limits = _limits(task, sandbox_provider)
        self._session = sandbox_provider.make(lambda sandbox: sandbox.session(limits=limits))
        for path in task.submission:
            if path not in files:
                self._fail("missing", f"there is no {path}")
            elif len(files[path]) > MAX_FILE:
                self._fail("invalid", f"{path} has more than {MAX_FILE >> 20} MiB")

    def begin(self) -> None:
        """Put the files there; what the task gives as data is the task's."""
        if self.failure is not None:
            return
        submitted = {path: self._files[path] for path in self._task.submission}
        task_files = {**self._task.starter_files(), **self._task.data_files()}
        self._session.files.put_all({k: v for k, v in task_files.items() if k not in submitted})
        try:
            self._session.files.put_all(submitted)
        except OSError as error:
            self._fail("invalid", f"its files have no room: {error}")
            return
        self._session.run(_CALL_CODE(encoding="utf-8"))

    def call(self, name: str, arguments: list[JSON]) -> JSON:
        """Call the function `name` of the submission with `arguments`.

        Raises:
            SubmissionFailed: now or before.
            SandboxClosed: the sandbox ended, by no fault of the submission.
            TypeError, ValueError: the evaluator's arguments are wrong.
        """
        self._check()
        if self._task.module is None:
            raise ValueError("task.toml names no module, so there is nothing to call")
        if not isinstance(name, str) or not name.isidentifier() or name.startswith("_"):
            raise ValueError(f"call: {name!r} is not the name of a function")
        if not isinstance(arguments, list):
            raise TypeError(f"call: the arguments must be a list, not {type(arguments).__name__}")
        if self._seconds_left <= 0:
            raise self._fail("timeout", f"its calls took over {self._task.limits.evaluation:g} s")
        try:
            return self._call_function(name, arguments)
        except SandboxClosed:
            raise
        except SandboxError as error:
            # The session runs the submission's code alone, which can keep it from answering.
            raise self._call_failed("crash", name, "broke its session", str(error)) from None

    def read(self, path: str) -> str:
        """The text of a file of the submission.

        Raises:
            SubmissionFailed: now or before; also for a file that is no text.
            ValueError: it is none of the files that `submission` in task.toml names.
        """
        self._check()
        if path not in self._task.submission:
            raise ValueError(f"read: {path!r} is none of the files of a submission")
        try:
            text = self._files[path].decode("utf-8")
        except UnicodeDecodeError as error:
            raise self._fail("invalid", f"{path} is no UTF-8 text: {error}") from None
        self.was_used = True
        return text

    def fail(self, kind: str, message: str, told: str) -> SubmissionFailed:
        """Note that the evaluator does not take the submission, or cannot use it."""
        return self._fail(kind, message, told)

    def close(self) -> None:
        """End the session."""
        self._session.close()

    def _call_function(self, name: str, arguments: list[JSON]) -> JSON:
        limit = min(self._task.limits.call, self._seconds_left)
        began = time.monotonic()
        self._calls += 1
        try:
            self._session.set("_call", [self._task.module, name, arguments])
            outcome = self._session.run(_CALL, timeout=limit)
            if not outcome.ok:
                raise self._call_failed(*_failure_of(name, outcome, limit))
            reply = self._reply(name)
        finally:
            # With what it takes to read the reply, which is an object of the submission's.
            self._seconds_left -= time.monotonic() - began
        self.was_used = True
        return reply

    def _check(self) -> None:
        if self.failure is not None:
            raise SubmissionFailed(self.failure.message)

    def _reply(self, name: str) -> JSON:
        try:
            reply: JSON = self._session.get("_reply")
        except (TypeError, ValueError, KeyError) as error:
            detail = str(error).removeprefix("_reply: ")
            raise self._call_failed("invalid", name, "returned no JSON", detail) from None
        if len(json.dumps(reply)) > MAX_REPLY:
            raise self._fail("invalid", f"{name}() returned more than {MAX_REPLY >> 20} MiB")
        return reply

    def _call_failed(
        self, kind: str, name: str, told: str, detail: str | None = None
    ) -> SubmissionFailed:
        message = f"{name}() {told}" if detail is None else f"{name}() {told}: {detail}"
        return self._fail(kind, message, f"{name}() {told} in call {self._calls}")

    def _fail(self, kind: str, message: str, told: str | None = None) -> SubmissionFailed:
        if self.failure is None:
            texts = (message, message if told is None else told)
            self.failure = SubmissionFailure(kind, *(text[:_MAX_MESSAGE] for text in texts))
        return SubmissionFailed(self.failure.message)


def _limits(task: Task, sandbox_provider: SandboxProvider) -> Limits:
    limits = sandbox_provider.limits
    memory = limits.memory if task.limits.memory is None else task.limits.memory
    return replace(limits, memory=memory, timeout=task.limits.call, output="1MiB")


def _failure_of(name: str, outcome: AnyOutcome, limit: float) -> tuple[str, str, str, str | None]:
    """The kind of a failed call, its function, its failure, and the detail for the host."""
    error = outcome.error
    match outcome:
        case TimedOut():
            return "timeout", name, f"did not return within {limit:.3g} s", None
        case Killed(reason="memory"):
            return "memory", name, "needed more memory than there is", None
        case Killed(reason=reason):
            return "crash", name, f"ended its process ({reason})", None
        case _ if error is not None:
            told = error.type if error.type in _TOLD_ERRORS else "an exception"
            return "exception", name, f"raised {told}", f"{error.type}: {error.message}"
    return "crash", name, "did not return", None


# Errors of a task itself, as opposed to failures of a submission.


@set_module("repl_env.tasks")
class TaskError(REPLError):
    """A task cannot be used as it is; the message names the task and the reason."""


@set_module("repl_env.tasks")
class EvaluatorError(TaskError):
    """The evaluator of a task gave no score by its own fault; nothing was scored."""


# Whether sessions can work on a task: its packages are there, and its own folder is not.
#
# A folder of a task holds the solution and the evaluator. Sessions may see it because it is below
# the interpreter's packages, as the shipped tasks are; then another folder is shown in its place.

_HIDDEN = Path(__file__).with_name("hidden")
_READY = Path(__file__).with_name("session_code") / "check_packages.py"
_WAITING = 60.0  # seconds of an evaluation beside its calls and the evaluator's own execution


def provider_for(
    task: Task,
    sandbox: Sandbox | None = None,
    *,
    isolation: str = "auto",
    require: str | None = None,
) -> SandboxProvider:
    """The sandbox of this task's sessions, checked by one session.

    Raises:
        TaskError: a package is not there, or sessions see the folder of the task.
        IsolationError: this system cannot give the isolation that was asked for.
        TypeError, ValueError: naming the argument.
    """
    settings = SandboxSettings()
    if sandbox is None:
        settings = SandboxSettings.of(isolation, require, _check_limits(task), ())
    sandbox_provider = SandboxProvider(sandbox, settings)
    folder = (task.hidden or task.directory).resolve()
    seen = _sees(task, sandbox_provider, folder)
    if seen and sandbox is None:
        sandbox_provider = SandboxProvider(
            None, replace(settings, mounts=((str(folder), str(_HIDDEN)),))
        )
        try:
            seen = _sees(task, sandbox_provider, folder)
        except SandboxError as error:
            raise _visible(task, folder) from error
    if seen:
        raise _visible(task, folder)
    return sandbox_provider


def _sees(task: Task, sandbox_provider: SandboxProvider, folder: Path) -> bool:
    shown: Mapping[str, str] = {}
    if isinstance(sandbox_provider.given, Sandbox):
        shown = sandbox_provider.given.mounts
    places: list[JSON] = [str(folder)]
    for inside, outside in shown.items():
        host = Path(outside).resolve()
        if host.is_relative_to(folder):
            return True  # a part of it
        if folder.is_relative_to(host):
            places.append(str(inside / folder.relative_to(host)))
    session = sandbox_provider.make(lambda sandbox: sandbox.session())
    with session:
        session.set("_wanted", list(task.packages))
        session.set("_folders", places)
        outcome = session.run(_READY.read_text(encoding="utf-8"))
        if not outcome.ok:
            raise TaskError(f"{task.name}: a session cannot be looked into: {outcome.error}")
        absent, seen = session.get("_absent"), session.get("_seen")
    if isinstance(absent, list) and absent:
        missing = ", ".join(map(str, absent))
        raise TaskError(f"{task.name}: packages that sessions do not have: {missing}")
    return bool(seen)


def _check_limits(task: Task) -> Limits:
    memory = task.limits.memory or Limits().memory
    wait = 2 * task.limits.evaluation + _WAITING
    return Limits(
        timeout=task.limits.cell, host_timeout=wait * task.limits.validations, memory=memory
    )


def _visible(task: Task, folder: Path) -> TaskError:
    return TaskError(
        f"{task.name}: sessions would see {folder}, which holds the solution and the evaluator. "
        "Put the tasks where sessions see nothing, outside the interpreter's folders, or let "
        'repl-env start the sandbox of tier "jailed" itself, which hides them'
    )


# The files of one folder of a task.

EVALUATOR_FILE = "evaluate.py"  # in the folder of the evaluator: the code of the evaluation
MAX_FOLDER_BYTES = 64 << 20  # of all files of a folder: they are held in memory


def read_folder(
    task_name: str, directory: Path, folder: str, without: Collection[str] = ()
) -> dict[str, bytes]:
    """Return the files of `directory / folder` by their paths in it, except the paths `without`.

    Raises:
        TaskError: naming the task; a file is a link, or the folder exceeds `MAX_FOLDER_BYTES`.
    """
    root = directory / folder
    bytes_left = MAX_FOLDER_BYTES
    files: dict[str, bytes] = {}
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if path.is_symlink():
            raise TaskError(f"{task_name}: {folder}/{name} is a link; put the file there")
        if not path.is_file() or "__pycache__" in path.parts or name in without:
            continue
        bytes_left -= path.stat().st_size
        if bytes_left < 0:
            raise TaskError(f"{task_name}: {folder}/ has more than {MAX_FOLDER_BYTES >> 20} MiB")
        files[name] = read_regular(path, MAX_FOLDER_BYTES)
    return files


# `Evaluator`: the score of a submission, found by the task's evaluator in a session of its own.
#
# Three sessions never meet: the policy's, the submission's, and the evaluator's. The evaluator
# has four functions of the host: `call` and `read` reach the submission, `score` and `reject` say
# what it came to. `score` exists in the evaluator's session alone, so no output of a submission
# is a score.

_MAX_EVALUATOR_MESSAGE = 2_000  # characters of an evaluator's error
_TOLD_CRASH = "the evaluator could not use what the submission gave"
_WORD = re.compile(r"[^\s,;:()\[\]{}'\"]+")
_LONGEST_COUNT = 6  # digits


@set_module("repl_env.tasks")
@dataclass(frozen=True, slots=True, kw_only=True)
class SubmissionEvaluation:
    """Result for a submission: a score, or a failure of the submission.

    Attributes:
        gain: 0 for the baseline's score, 1 for the reference's, from -1 to 2; -1 after a failure.
        failure: "missing", "exception", "timeout", "memory", "crash", "invalid" or "rejected".
        message: how it failed, for the host; texts in it may come from the submission's code.
        told: the part of it that a policy is told: kinds and counts, no text of the submission's.
        details: what the evaluator tells beside the score; for the host only.
    """

    task: str
    metric: str
    direction: str
    score: float | None
    gain: float
    failure: str | None = None
    message: str = ""
    told: str = ""
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
        self._words = _words(self._files)
        self._sound_lock = threading.Lock()
        self._is_sound: bool | None = None
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
        functions, problem = self._run(submission)
        if submission.failure is None and problem is not None:
            # A policy could otherwise choose to have no score, by a reply of a wrong type.
            if not (submission.was_used and self._scores_documented()):
                raise EvaluatorError(f"{self.task.name}: {problem}")
            submission.fail("invalid", f"{_TOLD_CRASH}: {problem}", _TOLD_CRASH)
        return functions.scored if submission.failure is None else None

    def _run(self, submission: Submission) -> tuple[EvaluatorFunctions, str | None]:
        """Run the evaluator, and return what it said and why it gave no score, if so."""
        functions = EvaluatorFunctions(submission, self._words)
        limits = _evaluator_limits(self.task, self.sandbox_provider)
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
        if not outcome.ok:
            return functions, _failure_reason(outcome, self.task)
        if functions.scored is None:
            return functions, functions.usage_error or "the evaluator ended without score()"
        return functions, functions.usage_error

    def _scores_documented(self) -> bool:
        """Whether the evaluator has a score for the baseline, else for the solution.

        True for a task that has neither: nothing tells the two cases apart there.
        """
        with self._sound_lock:
            if self._is_sound is None:
                self._is_sound = self._tried_documented()
            return self._is_sound

    def _tried_documented(self) -> bool:
        for documented in (self.task.baseline_files, self.task.solution_files):
            try:
                files = documented()
            except TaskError:
                continue
            submission = Submission(self.task, self.sandbox_provider, files)
            try:
                submission.begin()
                return submission.failure is None and self._run(submission)[1] is None
            finally:
                submission.close()
        return True

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
            failure = failure or SubmissionFailure("crash", "", "")
            return SubmissionEvaluation(
                score=None,
                gain=MIN_GAIN,
                failure=failure.kind,
                message=failure.message,
                told=failure.told,
                **common,
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

    def __init__(self, submission: Submission, words: Collection[str]) -> None:
        self._submission, self._words = submission, words
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
        raise self._submission.fail("rejected", str(reason), _authored(str(reason), self._words))

    def _finite(self, value: float) -> float:
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            self.usage_error = "score() takes a finite number"
            raise ValueError(self.usage_error)
        return number


def _evaluator_limits(task: Task, sandbox_provider: SandboxProvider) -> Limits:
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
            return f"the evaluator raised {error.type}: {error.message}"[:_MAX_EVALUATOR_MESSAGE]
    return "the evaluator failed"


def _words(files: Mapping[str, bytes]) -> frozenset[str]:
    """The words in the code of an evaluator."""
    codes = (data.decode("utf-8", "replace") for path, data in files.items() if path[-3:] == ".py")
    return frozenset(word.rstrip(".") for code in codes for word in _WORD.findall(code))


def _authored(reason: str, words: Collection[str]) -> str:
    """`reason` without words that are not in the evaluator's code; one count may be.

    An evaluator may quote a reply, which code of the submission makes of its hidden inputs.
    """
    counts = 0

    def told(match: re.Match[str]) -> str:
        nonlocal counts
        word = match[0].rstrip(".")
        if word in words:
            return match[0]
        counts += word.isdecimal()
        return match[0] if word.isdecimal() and len(word) <= _LONGEST_COUNT and counts == 1 else "…"

    return _WORD.sub(told, reason)


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
