"""Summaries of an evaluation and comparisons of two, with confidence intervals."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import sub
from statistics import NormalDist, fmean, mean, stdev

from repl_env.common.display import Displayed, set_module
from repl_env.errors import INFRASTRUCTURE_KINDS
from repl_env.evaluation.dataset import DatasetEntry
from repl_env.evaluation.evaluator import Evaluation, Result

# Confidence intervals of means, and percentiles.

LEVEL = 0.95
_Z = NormalDist().inv_cdf(0.5 + LEVEL / 2)
# Student's t at 0.975 for 1 to 6 degrees of freedom; the expansion below is exact to 0.1 % above.
_SMALL_T = (12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469)


def interval(scores: Sequence[float]) -> tuple[float, float] | None:
    """The 95 % interval of the mean; None if there are too few scores to tell.

    Wilson's for scores that are all 0 or 1, Student's for others, which needs two of them. Where
    all scores are from 0 to 1, so is the interval.
    """
    if not scores:
        return None
    if all(score in {0.0, 1.0} for score in scores):
        return wilson(int(sum(scores)), len(scores))
    if len(scores) < 2:
        return None
    low, high = _of_mean(scores)
    if all(0 <= score <= 1 for score in scores):
        return max(low, 0.0), min(high, 1.0)
    return low, high


def paired_interval(before: Sequence[float], after: Sequence[float]) -> tuple[float, float] | None:
    """The 95 % interval of the mean of `after` minus `before`, which are scores of the same tasks.

    Newcombe's for scores that are all 0 or 1, Student's of the differences for others. None: there
    are too few tasks to tell, or all differences are the same, which says nothing about their
    spread.
    """
    if not before:
        return None
    if all(score in {0.0, 1.0} for score in (*before, *after)):
        return newcombe(before, after)
    differences = list(map(sub, after, before))
    if len(set(differences)) < 2:
        return None
    low, high = _of_mean(differences)
    if all(0 <= score <= 1 for score in (*before, *after)):
        return max(low, -1.0), min(high, 1.0)
    return low, high


def newcombe(before: Sequence[float], after: Sequence[float]) -> tuple[float, float]:
    """The interval of a difference of paired proportions (Newcombe 1998, method 10).

    Unlike Student's it is not empty where no task changed.
    """
    count = len(before)
    first, second = int(sum(before)), int(sum(after))
    both = sum(1 for pair in zip(before, after, strict=True) if all(pair))
    correlation = _correlation(both, first - both, second - both, count)
    low_first, high_first = wilson(first, count)
    low_second, high_second = wilson(second, count)
    shares = first / count, second / count

    def reach(one: float, other: float) -> float:
        return math.sqrt(max(0.0, one * one - 2 * correlation * one * other + other * other))

    difference = shares[1] - shares[0]
    return (
        max(-1.0, difference - reach(shares[1] - low_second, high_first - shares[0])),
        min(1.0, difference + reach(high_second - shares[1], shares[0] - low_first)),
    )


def _correlation(both: int, only_first: int, only_second: int, count: int) -> float:
    """The correlation of two columns of 0 and 1, continuity-corrected as method 10 has it."""
    neither = count - both - only_first - only_second
    margins = math.prod(
        (both + only_first, both + only_second, only_first + neither, only_second + neither)
    )
    if margins == 0:
        return 0.0
    product = both * neither - only_first * only_second
    if product > 0:
        return max(product - count / 2, 0.0) / math.sqrt(margins)
    return product / math.sqrt(margins)


def _of_mean(values: Sequence[float]) -> tuple[float, float]:
    """Student's interval of the mean of two or more values."""
    middle = mean(values)
    half = student(len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return middle - half, middle + half


def wilson(successes: int, count: int) -> tuple[float, float]:
    """Wilson's score interval of a proportion (Wilson 1927)."""
    share, z2 = successes / count, _Z * _Z
    middle = (share + z2 / (2 * count)) / (1 + z2 / count)
    half = _Z * math.sqrt(share * (1 - share) / count + z2 / (4 * count * count)) / (1 + z2 / count)
    # At the ends the formula gives 0 and 1 exactly but for rounding.
    return (0.0 if successes == 0 else middle - half), (
        1.0 if successes == count else middle + half
    )


def student(degrees: int) -> float:
    """The quantile of Student's t for the level, by its expansion around the normal one.

    Abramowitz and Stegun, 26.7.5.
    """
    if degrees <= len(_SMALL_T):
        return _SMALL_T[degrees - 1]
    z, n = _Z, degrees
    return (
        z
        + (z**3 + z) / (4 * n)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3)
    )


def percentile(values: Sequence[float], share: float) -> float | None:
    """The smallest value that at least `share` of the values do not exceed; None of none."""
    if not values:
        return None
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


# Two results files compared: the paired difference of the scores, and the tasks that changed.


@set_module("repl_env.evaluation")
@dataclass(frozen=True, slots=True, repr=False)
class TaskChange(Displayed):
    """A task that both files score, differently; `difference` is the later score minus the first.

    Attributes:
        before, after: the results of the first and of the second file.
    """

    id: str
    before: Result
    after: Result
    difference: float


@set_module("repl_env.evaluation")
@dataclass(frozen=True, slots=True)
class ScoreDifference:
    """The mean paired difference of a group of tasks.

    Attributes:
        name: "all", or the kind of the tasks.
        n: the number of tasks that both files score.
        before, after: the mean scores of these tasks in the first and in the second file.
        mean: `after` minus `before`.
        low, high: bounds of `mean` with 95 % confidence; None if there are too few tasks to tell.
    """

    name: str
    n: int
    before: float
    after: float
    mean: float
    low: float | None
    high: float | None


@set_module("repl_env.evaluation")
@dataclass(frozen=True, slots=True, repr=False)
class Comparison(Displayed):
    """Two results files, task by task. Only tasks that both files score are in the differences.

    Attributes:
        differences: of all tasks, then by kind; empty if no task is scored in both files.
        better, worse: the tasks whose score rose or fell, the largest change first.
        unequal: ids whose question or expected answer is not the same in both files; left out.
        only_before, only_after: ids that only the first or only the second file scores.
    """

    differences: tuple[ScoreDifference, ...]
    better: tuple[TaskChange, ...]
    worse: tuple[TaskChange, ...]
    unequal: tuple[str, ...]
    only_before: tuple[str, ...]
    only_after: tuple[str, ...]


@set_module("repl_env.evaluation")
def compare(before: Iterable[Result], after: Iterable[Result]) -> Comparison:
    """Compare the results of the same tasks, such as those of two models.

    Of several results of one id the last counts, as in `read_results`; of several epochs of a task,
    the mean of their scores.
    """
    first, second = _scored(before), _scored(after)
    common = [name for name in first if name in second]
    unequal = [name for name in common if not _is_same_task(first[name], second[name])]
    left_out = frozenset(unequal)
    pairs = [(first[name], second[name]) for name in common if name not in left_out]
    changes = [change for pair in pairs if (change := _change(*pair)).difference]
    return Comparison(
        differences=tuple(_differences(pairs)),
        better=_sorted(each for each in changes if each.difference > 0),
        worse=_sorted(each for each in changes if each.difference < 0),
        unequal=tuple(unequal),
        only_before=tuple(name for name in first if name not in second),
        only_after=tuple(name for name in second if name not in first),
    )


def _scored(results: Iterable[Result]) -> dict[str, Result]:
    """One result for each task that has a score: of several epochs, the first with their mean."""
    by_task: dict[str, list[Result]] = {}
    for each in {each.id: each for each in results}.values():
        if each.score is not None:
            by_task.setdefault(each.task, []).append(each)
    return {
        task: replace(epochs[0], id=task, epoch=1, score=fmean(map(_score, epochs)))
        if len(epochs) > 1
        else epochs[0]
        for task, epochs in by_task.items()
    }


def _is_same_task(before: Result, after: Result) -> bool:
    """Whether both are about one question; a result that names no question fits every one."""
    if before.question is None or after.question is None:
        return True
    return (before.question, before.expected) == (after.question, after.expected)


def _change(before: Result, after: Result) -> TaskChange:
    return TaskChange(before.id, before, after, _score(after) - _score(before))


def _score(result: Result) -> float:
    assert result.score is not None  # `_scored` leaves out the others
    return result.score


def _sorted(changes: Iterable[TaskChange]) -> tuple[TaskChange, ...]:
    return tuple(sorted(changes, key=lambda each: -abs(each.difference)))


def _differences(pairs: Sequence[tuple[Result, Result]]) -> Iterator[ScoreDifference]:
    if pairs:
        yield _difference("all", pairs)
    kinds = sorted({after.kind for _, after in pairs if after.kind is not None})
    for kind in kinds:
        yield _difference(kind, [pair for pair in pairs if pair[1].kind == kind])


def _difference(name: str, pairs: Sequence[tuple[Result, Result]]) -> ScoreDifference:
    first = [_score(before) for before, _ in pairs]
    second = [_score(after) for _, after in pairs]
    low, high = paired_interval(first, second) or (None, None)
    means = fmean(first), fmean(second)
    return ScoreDifference(name, len(pairs), *means, means[1] - means[0], low, high)


# Summary of an evaluation: scores with their uncertainty, failures, cost.


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
            those ("difficulty hard"), then by epoch if there are several ("epoch 2").
        epoch_deviation: the standard deviation of the mean scores of the epochs; None with one.
        failures: tasks whose failure was ours. They are no zeros.
        masked_share: of the tasks that ran, the part that an infrastructure failure left unscored.
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
    epoch_deviation: float | None
    failures: tuple[FailureCount, ...]
    masked_share: float
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
    """The summary of what a results file has: of the tasks in it, by kind and epoch alone."""
    return _summary(results, len(results), (), gave_up=False)


def _summary(
    results: Sequence[Result], tasks: int, entries: Iterable[DatasetEntry], *, gave_up: bool
) -> Summary:
    entries = list(entries)
    scored = [result for result in results if result.score is not None]
    scores, epochs = _grouped(scored, entries), _by_epoch(scored)
    means = [each.mean for each in epochs if each.mean is not None]
    spent = [result.spent for result in results]
    return Summary(
        tasks=tasks,
        scored=len(scored),
        not_run=tasks - len(results),
        gave_up=gave_up,
        scores=(*scores, *epochs),
        epoch_deviation=stdev(means) if len(means) > 1 else None,
        failures=tuple(
            FailureCount(result.id, result.error_kind or "unknown", result.error)
            for result in results
            if result.score is None
        ),
        masked_share=_share(results),
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


def _share(results: Sequence[Result]) -> float:
    masked = [each.score is None and each.error_kind in INFRASTRUCTURE_KINDS for each in results]
    return sum(masked) / len(masked) if masked else 0.0


# The facts of tasks that scores are grouped by, besides their kind.
_FACTS = ("split", "difficulty", "group")


def _grouped(scored: Sequence[Result], entries: Sequence[DatasetEntry]) -> list[Scores]:
    kinds = {each.id: each.kind for each in scored}
    found = [_scores("all", scored), *_by("", kinds, scored)]
    for fact in _FACTS:
        names_by_id = {entry.id: getattr(entry.task, fact) for entry in entries}
        found += _by(f"{fact} ", names_by_id, scored)
    return found


def _by_epoch(scored: Sequence[Result]) -> list[Scores]:
    """The scores of each epoch, if there are several."""
    epochs = {each.id: f"{each.epoch}" for each in scored}
    found = _by("epoch ", epochs, scored) if len(set(epochs.values())) > 1 else ()
    return sorted(found, key=_number)


def _number(scores: Scores) -> int:
    return int(scores.name.rpartition(" ")[2])


def _by(
    prefix: str, names_by_id: Mapping[str, str | None], scored: Sequence[Result]
) -> Iterator[Scores]:
    """The scores of each name; `names_by_id` has the names by the ids of results."""
    names = sorted({name for each in scored if (name := names_by_id.get(each.id)) is not None})
    for name in names:
        group = [each for each in scored if names_by_id.get(each.id) == name]
        yield _scores(f"{prefix}{name}", group)


def _scores(name: str, group: Iterable[Result]) -> Scores:
    """The scores of a group.

    Scores of one task in several epochs are no independent ones: the interval is that of the means
    of tasks.
    """
    by_task: dict[str, list[float]] = {}
    for result in group:
        if result.score is not None:
            by_task.setdefault(result.task, []).append(result.score)
    scores = [score for each in by_task.values() for score in each]
    low, high = interval([fmean(each) for each in by_task.values()]) or (None, None)
    return Scores(name, len(scores), fmean(scores) if scores else None, low, high)


def _counted(names: Iterable[str | None]) -> dict[str, int]:
    """How often each name occurs, the most frequent first."""
    counts = Counter(name for name in names if name is not None)
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
