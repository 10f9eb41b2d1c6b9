"""Two results files compared: the paired difference of the scores, and the tasks that changed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from repl_env.common.displayed import Displayed
from repl_env.common.set_module import set_module
from repl_env.evaluation.confidence_intervals import paired_interval
from repl_env.evaluation.results_file import Result


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

    Of several results of one id the last counts, as in `read_results`.
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
    last = {each.id: each for each in results}
    return {name: each for name, each in last.items() if each.score is not None}


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
