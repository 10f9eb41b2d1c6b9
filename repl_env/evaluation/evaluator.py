"""`Evaluation`: a solver over the tasks of a dataset, several at once in one event loop.

A failure of ours is not a score of zero: a model that cannot be reached says nothing about answers.
Such tasks have no score, and are run again by the next evaluation with the same results file.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from repl_env.common.argument_checks import at_least, of_kind
from repl_env.common.json_values import replace_surrogates
from repl_env.common.set_module import set_module
from repl_env.errors import INFRASTRUCTURE_KINDS, EpisodeAborted, ModelError
from repl_env.evaluation.dataset import Dataset, DatasetEntry, DatasetError, EvalTask
from repl_env.evaluation.metrics import RUBRICS, Metric, check_metric, score
from repl_env.evaluation.results_file import Result, ResultsFile
from repl_env.evaluation.solvers import Solved, Solver, check_solver
from repl_env.rlm.budget.budget_limits import Spent

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
    match error:
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
            spent=spent if isinstance(spent, Spent) else Spent(),
            trajectory=getattr(error, "trajectory", None),
        ),
        failure=kind,
        error=message,
    )
