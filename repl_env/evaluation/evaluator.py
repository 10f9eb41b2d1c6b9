"""`Evaluation`: a solver over a dataset, many at once; its results file, which survives a kill."""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import os
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from repl_env.common.display import Displayed, set_module
from repl_env.common.files import PRIVATE, append_line, make_private, read_regular
from repl_env.common.values import as_path, at_least, of_kind, replace_surrogates
from repl_env.errors import INFRASTRUCTURE_KINDS, EpisodeAborted, ModelError
from repl_env.evaluation.dataset import (
    RUBRICS,
    Dataset,
    DatasetEntry,
    DatasetError,
    EvalTask,
    Metric,
    Solved,
    Solver,
    check_metric,
    check_solver,
    score,
)
from repl_env.rlm.budget import Spent

if TYPE_CHECKING:
    from repl_sandbox.types import JSON


# The results file: one line for each finished task, appended as it finishes.
#
# Whatever ends the process, lines that are whole stay: a line goes out in one piece when its task
# is done, and a half-written last one is cut off by whoever opens the file next. A first line
# says what the file is, so that no other file is ever appended to or cut.

_HEADER = b'{"type": "results", "version": 1}\n'


@set_module("repl_env.evaluation")
class ResultsError(ValueError):
    """A results file cannot be used; the message names it, and the line."""


@set_module("repl_env.evaluation")
@dataclass(frozen=True, slots=True, repr=False)
class Result(Displayed):
    """Result of one task.

    Attributes:
        fingerprint: of the dataset's line and all settings that a result depends on.
        score: None if there is none, because something of ours failed: `error_kind` says what.
        answer: the final answer's text; None if there was none.
        error: why there is no score, or no answer, in words.
        seconds: of wall time that the task took; `time`: when it ended, in seconds since the epoch.
        question, expected: of the task; the beginning of a long question. None in files of versions
            that did not write them.
        trajectory: the path of the run's trajectory, relative to the folder of the results file;
            None if none was written.
        epoch: counts the times that the task ran, from 1.
    """

    id: str
    fingerprint: str
    kind: str | None
    score: float | None
    answer: str | None
    stop_reason: str | None
    error_kind: str | None
    error: str | None
    seconds: float
    time: float
    spent: Spent = field(default_factory=Spent)
    question: str | None = None
    expected: JSON = None
    trajectory: str | None = None
    epoch: int = 1

    @property
    def task(self) -> str:
        """The id of the task in the dataset, which all of its epochs share."""
        return self.id.removesuffix(f"#{self.epoch}") if self.epoch > 1 else self.id


@set_module("repl_env.evaluation")
@dataclass(frozen=True, slots=True, repr=False)
class RecordedResults(Displayed):
    """The contents of a results file.

    Attributes:
        results: the last result of each task, in the order of the file.
        settings: the settings with which these results were made; usually one. `model` is among
            them, if a model was evaluated.
    """

    path: Path
    results: tuple[Result, ...]
    settings: tuple[Mapping[str, Any], ...]

    def trajectory(self, result: Result) -> Path | None:
        """The path of the trajectory of `result`; None if none was written."""
        return None if result.trajectory is None else self.path.parent / result.trajectory


@set_module("repl_env.evaluation")
def read_results(path: str | os.PathLike[str]) -> RecordedResults:
    """Read a results file, also one that an evaluation is writing.

    Raises:
        ResultsError: it is no results file, is damaged, or cannot be read.
    """
    path = as_path(path, "path")
    try:
        content = read_regular(path)
    except OSError as error:
        raise ResultsError(f"{path}: {error.strerror or error}") from error
    return parse_results(content, path)


def parse_results(content: bytes, path: Path) -> RecordedResults:
    """Return the results in the content of a results file; `path` is for errors alone.

    Raises:
        ResultsError: as of `read_results`.
    """
    lines = content.splitlines(keepends=True)
    if not lines or lines[0] != _HEADER:
        raise ResultsError(_not_results(path))
    if not lines[-1].endswith(b"\n"):
        lines.pop()
    found: dict[str, tuple[Result, Mapping[str, Any]]] = {}
    settings: Mapping[str, Any] = {}
    for number, line in enumerate(lines[1:], 2):
        if (read := _read(path, number, line)) is not None:
            found[read.id] = read, settings
        elif (begun := _settings(path, number, line)) is not None:
            settings = begun
    used: list[Mapping[str, Any]] = []
    for _, made_with in found.values():
        if made_with not in used:
            used.append(made_with)
    return RecordedResults(path, tuple(each for each, _ in found.values()), tuple(used))


@set_module("repl_env.evaluation")
class ResultsFile:
    """A results file, open for one evaluation at a time.

    Args:
        path: made if it is not there.
        fresh: forget what is in it.

    Attributes:
        earlier: the last result of each id and fingerprint.

    Raises:
        ResultsError: it is no results file, is damaged, is in use, or cannot be opened.
        OSError: it cannot be begun, for want of space.
    """

    def __init__(self, path: str | os.PathLike[str], *, fresh: bool = False) -> None:
        self.path = path = as_path(path, "path")
        self.earlier: dict[tuple[str, str], Result] = {}
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, PRIVATE)
        except OSError as error:
            raise ResultsError(f"{path}: {error.strerror or error}") from error
        try:
            self._begin(fresh)
            # A file of another kind was refused before this, and stays as it was.
            make_private(self._file)
        except BaseException:
            self.close()
            raise

    def append(self, result: Result) -> None:
        """Write a result; when this returns, the system has it.

        Raises:
            OSError: it cannot be written, and nothing of it is in the file.
        """
        # Not `asdict` of the whole: it copies `expected`, and ends at half the depth that JSON has.
        record = {each.name: getattr(result, each.name) for each in fields(result)}
        self._write({"type": "result", **record, "spent": asdict(result.spent)})

    def note(self, settings: dict[str, Any]) -> None:
        """Write down with which settings the results that follow are made."""
        self._write({"type": "begin", **settings})

    def close(self) -> None:
        """Close the file, which frees it for others."""
        os.close(self._file)

    def _begin(self, fresh: bool) -> None:
        if not stat.S_ISREG(os.fstat(self._file).st_mode):
            raise ResultsError(f"{self.path} is not a regular file")
        self._lock()
        with open(self._file, "rb", closefd=False) as file:
            lines = file.read().splitlines(keepends=True)
        # A header of which only the beginning was written is nobody else's file either.
        if lines and not _HEADER.startswith(lines[0]):
            raise ResultsError(f"{_not_results(self.path)}; name another file")
        if lines and not lines[-1].endswith(b"\n"):
            half = lines.pop()
            os.ftruncate(self._file, os.fstat(self._file).st_size - len(half))
        if fresh:
            lines = []
            os.ftruncate(self._file, 0)
        if not lines:
            append_line(self._file, _HEADER)
        for number, line in enumerate(lines[1:], 2):
            if (result := _read(self.path, number, line)) is not None:
                self.earlier[result.id, result.fingerprint] = result

    def _lock(self) -> None:
        if sys.platform == "win32":
            return
        import fcntl

        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ResultsError(f"{self.path} is in use by another evaluation") from error

    def _write(self, record: dict[str, Any]) -> None:
        append_line(self._file, json.dumps(record).encode("ascii") + b"\n")


def _not_results(path: Path) -> str:
    return f"{path} is not a file of results of `repl-env eval`"


def _settings(path: Path, number: int, line: bytes) -> Mapping[str, Any] | None:
    """The settings in a line that begins an evaluation; None if the line is of another type."""
    record = json.loads(line)
    if record["type"] != "begin":
        return None
    settings = record.get("settings") or {}
    if not isinstance(settings, dict):
        raise ResultsError(f'{path}, line {number} is damaged: "settings" is no object')
    return settings


def _read(path: Path, number: int, line: bytes) -> Result | None:
    """The result in a line; None if the line is of another type."""
    try:
        record = json.loads(line)
        if record.pop("type") != "result":
            return None
        spent = Spent(**record.pop("spent"))
        result = Result(**record, spent=spent)
        for each in fields(result):
            _check(each.name, getattr(result, each.name))
        for each in fields(spent):
            _check_number(each.name, getattr(spent, each.name))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ResultsError(f"{path}, line {number} is damaged: {error}") from error
    return result


_NUMBERS = frozenset({"score", "seconds", "time", "epoch"})
_OPTIONAL = frozenset(
    {"kind", "score", "answer", "stop_reason", "error_kind", "error", "question", "trajectory"}
)
_ANYTHING = frozenset({"spent", "expected"})


def _check(name: str, value: object) -> None:
    if name in _ANYTHING or (value is None and name in _OPTIONAL):
        return
    if name in _NUMBERS:
        _check_number(name, value)
    elif not isinstance(value, str):
        raise TypeError(f'"{name}" is {type(value).__name__}')


def _check_number(name: str, value: object) -> None:
    if not isinstance(value, (int, float)):
        raise TypeError(f'"{name}" is {type(value).__name__}')
    if not math.isfinite(value):
        raise ValueError(f'"{name}" is {value}')


# `Evaluation`: a solver over the tasks of a dataset, several at once in one event loop.
#
# A failure of ours is not a score of zero: a model that cannot be reached says nothing about
# answers. Such tasks have no score, and are run again by the next evaluation with the same
# results file.

_MAX_ANSWER = 100_000  # characters of an answer, and of an error, that a result keeps
_MAX_ERROR = 2_000
_MAX_QUESTION = 10_000

ResultHandler: TypeAlias = Callable[[Result], None]


@dataclass(frozen=True, slots=True)
class _Attempt:
    """A try at a task: what it came to, and the failure if there is no score."""

    solved: Solved
    score: float | None = None
    failure: str | None = None
    error: str | None = None


@set_module("repl_env.evaluation")
class Evaluation:
    """An evaluation, which `run` carries on from what `results` has.

    Args:
        metric: for all tasks; None: what each line names, else "exact".
        settings: all that results depend on besides the dataset and the metric, as JSON: with
            other ones, earlier results do not count. The metric's name is one of them.
        concurrency: tasks at once.
        give_up_after: failures of ours in a row after which no further task begins; 0: never.
        fatal: exceptions that end the evaluation instead of failing a task.
        on_result: called with each result as it comes; may be set later.

    Raises:
        TypeError, ValueError: naming the argument; nothing was asked.

    Attributes:
        done: the results, by id, earlier ones too.
        gave_up: whether `give_up_after` was reached.
    """

    def __init__(
        self,
        dataset: Dataset,
        solver: Solver,
        *,
        metric: Metric | None = None,
        settings: Mapping[str, Any] | None = None,
        results: ResultsFile | None = None,
        concurrency: int = 8,
        give_up_after: int = 20,
        fatal: tuple[type[Exception], ...] = (),
        on_result: ResultHandler | None = None,
    ) -> None:
        of_kind(dataset, Dataset, "dataset")
        self.dataset = dataset
        self._solver = check_solver(solver)
        self._metric = None if metric is None else check_metric(metric)
        self._settings = _settings_text(settings)
        self._results = results
        self._concurrency = at_least(concurrency, 1, "concurrency")
        self._give_up_after = at_least(give_up_after, 0, "give_up_after")
        self._fatal: tuple[type[Exception], ...] = (DatasetError, *fatal)
        self.on_result = on_result
        self._failed_in_a_row = 0
        self.gave_up = False
        self.done = dict(self._earlier())

    @property
    def missing(self) -> list[DatasetEntry]:
        """The tasks that have no score yet, in the order of the dataset."""
        done = self.done
        return [
            entry
            for entry in self.dataset.entries
            if entry.id not in done or done[entry.id].score is None
        ]

    async def run(self) -> None:
        """Run what is missing. If this is cancelled or raises, what is done stays done."""
        self.gave_up, self._failed_in_a_row = False, 0
        remaining = iter(self.missing)
        workers = [asyncio.create_task(self._work(remaining)) for _ in range(self._concurrency)]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)

    async def _work(self, remaining: Iterator[DatasetEntry]) -> None:
        for entry in remaining:
            if self.gave_up:
                return
            result = await self._result(entry)
            if self._results is not None:
                self._results.append(result)
            self.done[entry.id] = result
            self._failed_in_a_row = 0 if result.score is not None else self._failed_in_a_row + 1
            self.gave_up |= 0 < self._give_up_after <= self._failed_in_a_row
            if self.on_result is not None:
                self.on_result(result)

    async def _result(self, entry: DatasetEntry) -> Result:
        task = await asyncio.to_thread(self.dataset.load, entry)
        started = time.perf_counter()
        attempt = await self._attempt(task)
        seconds = time.perf_counter() - started
        attempt = await self._scored(task, attempt)
        solved = attempt.solved
        return Result(
            id=entry.id,
            fingerprint=self._fingerprint(entry),
            kind=entry.kind,
            score=attempt.score,
            answer=None if solved.text is None else replace_surrogates(solved.text[:_MAX_ANSWER]),
            stop_reason=solved.stop_reason,
            error_kind=attempt.failure or solved.error_kind,
            error=_error(attempt),
            seconds=seconds,
            time=time.time(),
            spent=solved.spent,
            question=task.question[:_MAX_QUESTION],
            expected=task.answer,
            trajectory=self._beside_results(solved.trajectory),
            epoch=entry.epoch,
        )

    def _beside_results(self, trajectory: str | os.PathLike[str] | None) -> str | None:
        """The path relative to the folder of the results file, so that both can move together."""
        if trajectory is None or self._results is None:
            return None if trajectory is None else os.fspath(trajectory)
        return os.path.relpath(trajectory, self._results.path.parent)

    async def _attempt(self, task: EvalTask) -> _Attempt:
        try:
            solved = await self._solver.solve(task)
        except asyncio.CancelledError:
            if _is_cancelled():
                raise
            error = "the solver was cancelled from inside"
            return _Attempt(Solved(None), failure="cancelled", error=error)
        # Boundary: a solver is anything, and one task must not end the others.
        except Exception as error:
            if isinstance(error, self._fatal):
                raise
            return _failed(error)
        if solved.error_kind in INFRASTRUCTURE_KINDS:
            return _Attempt(solved, failure=solved.error_kind)
        return _Attempt(solved)

    async def _scored(self, task: EvalTask, attempt: _Attempt) -> _Attempt:
        solved = attempt.solved
        if attempt.failure is not None:
            return attempt
        if solved.text is None:
            return replace(attempt, score=0.0)
        metric = self._metric or RUBRICS[task.rubric or "exact"]
        try:
            found = await score(metric, task.answer, solved.text, solved.value)
        except asyncio.CancelledError:
            if _is_cancelled():
                raise
            return replace(attempt, failure="rubric", error="the rubric was cancelled from inside")
        # Boundary: a metric may be the user's. That it fails says nothing about the answer.
        except Exception as error:  # noqa: BLE001
            return replace(attempt, failure="rubric", error=f"{type(error).__name__}: {error}")
        return replace(attempt, score=found)

    def _earlier(self) -> Iterator[tuple[str, Result]]:
        if self._results is None:
            return
        for entry in self.dataset.entries:
            if found := self._results.earlier.get((entry.id, self._fingerprint(entry))):
                yield entry.id, found

    def _fingerprint(self, entry: DatasetEntry) -> str:
        return hashlib.sha256(f"{entry.digest}{self._settings}".encode()).hexdigest()[:32]


def _error(attempt: _Attempt) -> str | None:
    error = attempt.error or attempt.solved.error
    return None if error is None else replace_surrogates(error[:_MAX_ERROR])


def _settings_text(settings: Mapping[str, Any] | None) -> str:
    try:
        return json.dumps(dict(settings or {}), sort_keys=True)
    except (TypeError, ValueError) as error:
        raise TypeError(f"settings must be JSON: {error}") from None


def _is_cancelled() -> bool:
    """Whether this task is to end, and not only something that it waited for."""
    current = asyncio.current_task()
    return current is None or current.cancelling() > 0


def _failed(error: Exception) -> _Attempt:
    """A try that ended in an error. If that is of a run, what the run came to is its `result`."""
    result = getattr(error, "result", None)
    spent = getattr(result, "usage", None)
    kind: str | None
    match error:
        case ModelError() if getattr(result, "error_kind", None) == "request":
            # The model's own conversation was refused, as too long for example: no answer, a 0.
            kind, message = None, str(error)
        case ModelError():
            kind, message = "llm", str(error)
        case EpisodeAborted():
            kind, message = error.kind, str(error)
        case _:
            kind, message = "solver", f"{type(error).__name__}: {error}"
    return _Attempt(
        Solved(
            text=getattr(result, "final_answer", None),
            stop_reason=getattr(result, "stop_reason", None),
            error_kind="request" if kind is None else None,
            spent=spent if isinstance(spent, Spent) else Spent(),
            trajectory=getattr(error, "trajectory", None),
        ),
        failure=kind,
        error=message,
    )


# The ways in which tasks of an evaluation failed, by name.


@set_module("repl_env.evaluation")
def failure_kind(result: Result) -> str | None:
    """Return how the task failed; None if its score is 1 or more.

    "wrong answer" and "partly right" (a score above 0) are answers, "no answer: max_iterations"
    names what stopped a run without one, "not scored: llm" the failure that left the task without a
    score.
    """
    if result.score is None:
        return f"not scored: {result.error_kind or 'unknown'}"
    if result.score >= 1:
        return None
    if result.answer is None:
        return f"no answer: {result.error_kind or result.stop_reason or 'unknown'}"
    return "partly right" if result.score > 0 else "wrong answer"


@set_module("repl_env.evaluation")
def failures_by_kind(results: Iterable[Result]) -> dict[str, tuple[Result, ...]]:
    """Return the failed tasks by `failure_kind`, the most frequent kind first."""
    found: dict[str, list[Result]] = {}
    for result in results:
        if (kind := failure_kind(result)) is not None:
            found.setdefault(kind, []).append(result)
    ordered = sorted(found.items(), key=lambda item: (-len(item[1]), item[0]))
    return {kind: tuple(failed) for kind, failed in ordered}
