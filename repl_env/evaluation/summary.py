"""Summary of an evaluation: scores with their uncertainty, failures, cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from repl_env.common.displayed import Displayed
from repl_env.common.set_module import set_module
from repl_env.evaluation.confidence_intervals import interval, percentile
from repl_env.evaluation.dataset import DatasetEntry
from repl_env.evaluation.evaluator import Evaluation
from repl_env.evaluation.results_file import Result


@dataclass(frozen=True, slots=True)
class Scores:
    """The scores of a group of tasks; `low` and `high` bound the mean with 95 % confidence."""

    name: str
    n: int
    mean: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class FailureCount:
    """A task without a score, and why."""

    id: str
    error_kind: str
    error: str | None


@set_module("repl_env.evaluation")
@dataclass(frozen=True, slots=True, repr=False)
class Summary(Displayed):
    """An evaluation in numbers. Only scored tasks are in `scores`; all that ran are in the rest.

    Attributes:
        tasks: in the dataset, or as many as were asked for.
        not_run: tasks that have not come to an end.
        scores: of all tasks, then by kind, then by split, difficulty and group where tasks have
            those ("difficulty hard").
        failures: tasks whose failure was ours. They are no zeros.
        error_kinds: what went wrong in tasks that have a score, at their end.
        stop_reasons: why runs ended.
        usd: what is known of the cost; the price of `unpriced_calls` is not.
        seconds_p50, seconds_p95: of wall time for a task.
    """

    tasks: int
    scored: int
    not_run: int
    gave_up: bool
    scores: tuple[Scores, ...]
    failures: tuple[FailureCount, ...]
    error_kinds: dict[str, int]
    stop_reasons: dict[str, int]
    calls: int
    failed_calls: int
    input_tokens: int
    output_tokens: int
    estimated_tokens: int
    usd: float
    unpriced_calls: int
    children: int
    seconds_p50: float | None
    seconds_p95: float | None


@set_module("repl_env.evaluation")
def summarize(evaluation: Evaluation) -> Summary:
    """The summary of what is done, which does not depend on the order in which it was done."""
    entries, done = evaluation.dataset.entries, evaluation.done
    results = [done[entry.id] for entry in entries if entry.id in done]
    return _summary(results, len(entries), entries, gave_up=evaluation.gave_up)


@set_module("repl_env.evaluation")
def summarize_results(results: Sequence[Result]) -> Summary:
    """The summary of what a results file has: of the tasks in it, by kind alone."""
    return _summary(results, len(results), (), gave_up=False)


def _summary(
    results: Sequence[Result], tasks: int, entries: Iterable[DatasetEntry], *, gave_up: bool
) -> Summary:
    scored = [result for result in results if result.score is not None]
    spent = [result.spent for result in results]
    return Summary(
        tasks=tasks,
        scored=len(scored),
        not_run=tasks - len(results),
        gave_up=gave_up,
        scores=_grouped(scored, entries),
        failures=tuple(
            FailureCount(result.id, result.error_kind or "unknown", result.error)
            for result in results
            if result.score is None
        ),
        error_kinds=_counted(result.error_kind for result in scored),
        stop_reasons=_counted(result.stop_reason for result in results),
        calls=sum(each.calls for each in spent),
        failed_calls=sum(each.failed_calls for each in spent),
        input_tokens=sum(each.input_tokens for each in spent),
        output_tokens=sum(each.output_tokens for each in spent),
        estimated_tokens=sum(each.estimated_tokens for each in spent),
        usd=sum(each.usd for each in spent),
        unpriced_calls=sum(each.unpriced_calls for each in spent),
        children=sum(each.children for each in spent),
        seconds_p50=percentile([result.seconds for result in results], 0.5),
        seconds_p95=percentile([result.seconds for result in results], 0.95),
    )


# The facts of tasks that scores are grouped by, besides their kind.
_FACTS = ("split", "difficulty", "group")


def _grouped(scored: Sequence[Result], entries: Iterable[DatasetEntry]) -> tuple[Scores, ...]:
    found = [_scores("all", scored), *_by("", {each.id: each.kind for each in scored}, scored)]
    for fact in _FACTS:
        names_by_id = {entry.id: getattr(entry.task, fact) for entry in entries}
        found += _by(f"{fact} ", names_by_id, scored)
    return tuple(found)


def _by(
    prefix: str, names_by_id: Mapping[str, str | None], scored: Sequence[Result]
) -> Iterator[Scores]:
    """The scores of each name; `names_by_id` has the names by the ids of results."""
    names = sorted({name for each in scored if (name := names_by_id.get(each.id)) is not None})
    for name in names:
        yield _scores(
            f"{prefix}{name}", [each for each in scored if names_by_id.get(each.id) == name]
        )


def _scores(name: str, group: Iterable[Result]) -> Scores:
    found = [result.score for result in group if result.score is not None]
    low, high = interval(found) or (None, None)
    return Scores(name, len(found), fmean(found) if found else None, low, high)


def _counted(names: Iterable[str | None]) -> dict[str, int]:
    """How often each name occurs, the most frequent first."""
    counts = Counter(name for name in names if name is not None)
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
