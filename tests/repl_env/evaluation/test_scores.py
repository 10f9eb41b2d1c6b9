"""Scores of answers, and the uncertainty of a mean."""

from __future__ import annotations

import json

import pytest

from repl_env.evaluation.dataset import RUBRICS, answered, metric_of, score
from repl_env.evaluation.report import (
    interval,
    newcombe,
    paired_interval,
    percentile,
    student,
    wilson,
)

PAIRS = [[1, 2], [3, 4]]


def scored(rubric, expected, answer):
    solved = answered(answer)
    return RUBRICS[rubric](expected, solved.text, solved.value)


@pytest.mark.parametrize(
    ("rubric", "expected", "answer", "worth"),
    [
        ("exact", "Ada Dorn", " ada dorn ", 1),
        ("exact", 7, "7", 1),
        ("exact", 7, 7.0, 1),
        ("exact", "7", "17", 0),
        ("fuzzy", "7", "it is 7", 0.5),
        ("json", {"a": [1, True]}, {"a": [1, True]}, 1),
        ("json", {"a": [1, True]}, '{"a": [1.0, true]}', 1),
        ("json", [1], [True], 0),
        ("json", {"a": 1}, "a: 1", 0),
        ("json", "text", "text", 1),
        ("json", [1], "[" * 100_000, 0),
        ("list", ["a", "b"], ["B", "a", "a"], 1),
        ("list", ["a", "b"], ["a"], 2 / 3),
        ("list", ["a", "b"], ["c"], 0),
        ("list", ["a", "b"], [], 0),
        ("list", ["a", "b"], '["b", "a"]', 1),
        ("list", ["a", "b"], "['b', 'a']", 1),
        ("list", ["a", "b"], "b, a", 1),
        ("list", ["Ada Dorn", "b"], "- Ada Dorn\n- b\n", 1),
        ("list", ["Ada Dorn", "b"], "1. Ada Dorn\n2. b", 1),
        ("list", ["7"], 7, 1),
        ("list", PAIRS, [(3, 4), (1, 2)], 1),
        ("list", PAIRS, "[[1, 2], [3, 4]]", 1),
        ("list", PAIRS, "(1, 2), (3, 4)", 1),
        ("list", PAIRS, "(1, 2)\n(3, 4)\n(5, 6)", 0.8),
        ("list", [[1, 2]], "[(1, 2)]", 1),
        ("list", PAIRS, [1, 2, 3, 4], 0),
        ("list", PAIRS, "__import__('os').abort()", 0),
        ("list", [], "[]", 1),
    ],
)
def test_a_rubric_scores(rubric: str, expected: object, answer: object, worth: float) -> None:
    assert scored(rubric, expected, answer) == pytest.approx(worth)


async def test_a_function_gets_value_or_text() -> None:
    seen = []

    def right(expected, answer) -> bool:
        seen.append(answer)
        return True

    metric = metric_of(right)

    assert await score(metric, 1, "[1]", [1]) == 1.0
    assert await score(metric, 1, "<odd>", None) == 1.0
    assert seen == [[1], "<odd>"]


async def test_a_function_may_be_asynchronous() -> None:
    async def close(expected: int, answer: int) -> float:
        return 1 / (1 + abs(expected - answer))

    assert await score(metric_of(close), 3, "4", 4) == 0.5


@pytest.mark.parametrize(("says", "error"), [("good", TypeError), (float("nan"), ValueError)])
async def test_an_invalid_score_is_an_error(says: object, error: type[Exception]) -> None:
    with pytest.raises(error, match="the score is"):
        await score(metric_of(lambda expected, answer: says), 1, "1", 1)


async def test_a_number_of_another_library_is_a_score() -> None:
    numpy = pytest.importorskip("numpy")

    for says in (numpy.float32(0.5), numpy.float64(0.5), numpy.array(0.5)):
        assert await score(metric_of(lambda expected, answer, says=says: says), 1, "1", 1) == 0.5


def nested(depth, value="a"):
    for _ in range(depth):
        value = [value]
    return value


def test_deeply_nested_lists_are_compared_in_linear_space() -> None:
    """As nested strings, each level would double the backslashes of the inner one."""
    deep, other = nested(100), nested(100, "b")

    assert scored("list", deep, deep) == 1
    assert scored("list", deep, other) == 0


def test_an_answer_nested_too_deeply_is_wrong_and_no_error_of_the_rubric() -> None:
    """A task whose rubric fails does not count, so that junk would be better than a mistake."""
    assert RUBRICS["list"]("a", "[" * 900 + "]" * 900, None) == 0
    assert RUBRICS["json"]("a", "[" * 900 + "]" * 900, None) == 0


def test_an_answer_is_carried_as_json() -> None:
    assert json.loads(answered((1, [2])).text) == [1, [2]]
    assert answered(None).text is None


def test_proportions_have_wilson_intervals() -> None:
    """The numbers are those of R's `prop.test(x, n, correct = FALSE)`."""
    assert wilson(8, 10) == pytest.approx((0.4901625, 0.9433178), abs=1e-6)
    assert wilson(0, 10) == pytest.approx((0, 0.2775328), abs=1e-6)
    assert interval([1.0] * 8 + [0.0] * 2) == wilson(8, 10)


@pytest.mark.parametrize(
    ("degrees", "quantile"),
    [(1, 12.706), (4, 2.776), (5, 2.571), (6, 2.447), (10, 2.228), (30, 2.042), (199, 1.972)],
)
def test_student_quantiles_match_published_tables(degrees: int, quantile: float) -> None:
    assert student(degrees) == pytest.approx(quantile, rel=1e-3)


def test_other_scores_have_student_intervals() -> None:
    low, high = interval([0.2, 0.4, 0.6, 0.8, 0.5])

    assert (low + high) / 2 == pytest.approx(0.5)
    assert high - low == pytest.approx(2 * 2.776 * 0.2236 / 5**0.5, rel=1e-3)
    assert interval([0.5, 1.0]) == (0.0, 1.0)
    assert interval([0.5]) is None
    assert interval([]) is None


def test_a_percentile_is_one_of_the_values() -> None:
    values = [float(n) for n in range(100, 0, -1)]

    assert (percentile(values, 0.5), percentile(values, 0.95)) == (50.0, 95.0)
    assert percentile([3.0], 0.95) == 3.0
    assert percentile([], 0.5) is None


def paired(both: int, only_first: int, only_second: int, neither: int):
    """The scores of tasks of which so many were right in both files, in one, or in none."""
    pairs = (
        [(1.0, 1.0)] * both
        + [(1.0, 0.0)] * only_first
        + [(0.0, 1.0)] * only_second
        + [(0.0, 0.0)] * neither
    )
    return tuple(zip(*pairs, strict=True))


def test_paired_proportions_get_newcombes_interval() -> None:
    """The numbers are those of a textbook example: airways of children (Bentur 2009)."""
    first, second = paired(1, 1, 7, 12)

    assert newcombe(second, first) == pytest.approx((-0.507, -0.026), abs=1e-3)
    low, high = newcombe(first, second)
    assert (low, high) == pytest.approx((0.026, 0.507), abs=1e-3)
    assert paired_interval(first, second) == (low, high)


@pytest.mark.parametrize("counts", [(5, 0, 0, 5), (1, 0, 0, 0), (0, 9, 0, 0), (0, 0, 9, 0)])
def test_an_interval_of_right_and_wrong_holds_the_difference_and_is_never_empty(counts) -> None:
    first, second = paired(*counts)
    low, high = paired_interval(first, second)
    difference = (sum(second) - sum(first)) / len(first)

    assert -1 <= low <= difference <= high <= 1
    assert low < high


def test_other_paired_scores_get_students_interval_of_their_differences() -> None:
    low, high = paired_interval([0.1, 0.5, 0.3, 0.2], [0.4, 0.6, 0.3, 0.6])

    assert (low + high) / 2 == pytest.approx(0.2)
    assert high - low == pytest.approx(2 * 3.182 * 0.18257 / 2, rel=1e-3)
    assert paired_interval([2.0, 5.0], [2.5, 9.0]) != (-1.0, 1.0)  # no bounds for other scales
    assert paired_interval([0.5, 0.5], [0.5, 0.5]) is None
    assert paired_interval([], []) is None
