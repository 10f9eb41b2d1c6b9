"""Two results files compared, as `repl-env results` and the viewer show them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from repl_env.evaluation import (
    Result,
    ResultsError,
    compare,
    failures_by_kind,
    read_results,
    summarize_results,
)
from tests.repl_env.evaluation.result_files import result, written


def scored(**scores):
    return [result(name, score) for name, score in scores.items()]


def test_a_comparison_pairs_the_tasks_that_both_files_score() -> None:
    found = compare(
        scored(a=0.0, b=1.0, c=1.0, d=None, e=1.0), scored(a=1.0, b=1.0, c=0.0, d=1.0, f=1.0)
    )

    (overall,) = found.differences
    assert (overall.name, overall.n, overall.before, overall.after) == ("all", 3, 2 / 3, 2 / 3)
    assert overall.mean == 0
    assert overall.low is not None
    assert overall.high is not None
    assert overall.low < 0 < overall.high
    assert [each.id for each in found.better] == ["a"]
    assert [(each.id, each.difference) for each in found.worse] == [("c", -1.0)]
    assert (found.only_before, found.only_after) == (("e",), ("d", "f"))


def test_differences_are_told_for_each_kind_and_changes_the_largest_first() -> None:
    kinds = {"a": "x", "b": "x", "c": "y", "d": "y"}

    def of(**scores):
        return [replace(each, kind=kinds[each.id]) for each in scored(**scores)]

    found = compare(of(a=0.5, b=0.5, c=0.1, d=0.2), of(a=0.6, b=0.9, c=0.1, d=0.1))

    assert [(each.name, each.n) for each in found.differences] == [("all", 4), ("x", 2), ("y", 2)]
    assert [each.id for each in found.better] == ["b", "a"]


def test_a_task_of_the_same_id_and_another_question_is_left_out() -> None:
    first = [replace(result("a"), question="q", expected=1), replace(result("b"), question="q")]
    second = [replace(result("a", 0.0), question="q", expected=2), result("b", 0.0)]
    found = compare(first, second)

    assert found.unequal == ("a",)
    assert [each.id for each in found.worse] == ["b"]


def test_files_with_nothing_in_common_have_no_difference() -> None:
    found = compare(scored(a=1.0), scored(b=1.0))

    assert (found.differences, found.better, found.worse) == ((), (), ())


def test_a_file_is_read_as_it_is_written(tmp_path: Path) -> None:
    path = written(tmp_path / "r", result("a", None), result("b"), result("a", 0.5))
    with path.open("a") as file:
        file.write('{"type": "result", "half')
    found = read_results(path)

    assert [(each.id, each.score) for each in found.results] == [("a", 0.5), ("b", 1.0)]
    assert found.settings == ({"model": "m"},)
    assert summarize_results(found.results).scores[0].mean == 0.75


def test_settings_are_those_of_the_results_that_count(tmp_path: Path) -> None:
    path = written(tmp_path / "r", result("a"), result("b"))
    with path.open("a") as file:
        file.write(json.dumps({"type": "begin", "settings": {"model": "other"}}) + "\n")
    assert read_results(path).settings == ({"model": "m"},)

    with path.open("a") as file:
        file.write(path.read_text().splitlines()[2] + "\n")
    assert read_results(path).settings == ({"model": "other"}, {"model": "m"})


def test_a_trajectory_is_found_beside_the_file(tmp_path: Path) -> None:
    told = replace(result("a"), trajectory="runs/a.jsonl", question="q", expected=[["deep"]])
    path = written(tmp_path / "r", told, result("b"))
    found = read_results(path)

    assert found.results[0] == told
    assert found.trajectory(told) == tmp_path / "runs/a.jsonl"
    assert found.trajectory(found.results[1]) is None


def test_an_expected_answer_may_be_nested_deep(tmp_path: Path) -> None:
    deep: list = []
    for _ in range(600):
        deep = [deep]
    path = written(tmp_path / "r", replace(result("a"), expected=deep))

    assert json.dumps(read_results(path).results[0].expected) == json.dumps(deep)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "my notes",
        '{"type": "results", "version": 1}\n[]\n',
        '{"type": "results", "version": 1}\n{"type": "begin", "settings": 1}\n',
        '{"type": "results", "version": 1}\n{"type": "result", "id": "a"}\n',
    ],
)
def test_a_file_of_another_kind_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "r").write_text(text)

    with pytest.raises(ResultsError, match=r"r is not a file of results|line 2 is damaged"):
        read_results(tmp_path / "r")


@pytest.mark.parametrize("damage", ['"score": NaN', '"spent": {"calls": "many"}', '"question": 1'])
def test_a_result_with_a_value_that_no_evaluation_writes_is_refused(
    tmp_path: Path, damage: str
) -> None:
    path = written(tmp_path / "r", result("a"))
    name, _, value = damage.partition(": ")
    *lines, last = path.read_text().splitlines()
    record = json.loads(last) | {name.strip('"'): json.loads(value)}
    path.write_text("\n".join([*lines, json.dumps(record)]) + "\n")

    with pytest.raises(ResultsError, match="line 3 is damaged"):
        read_results(path)


def test_a_device_is_no_file_of_results() -> None:
    with pytest.raises(ResultsError, match="/dev/zero: is a device"):
        read_results("/dev/zero")


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ResultsError, match="absent: No such file"):
        read_results(tmp_path / "absent")


def test_failures_have_kinds_the_most_frequent_first() -> None:
    silent = [
        replace(result(name, 0.0), answer=None, stop_reason="max_iterations") for name in "ab"
    ]
    down = replace(result("c", None), error_kind="llm")
    found = failures_by_kind([*silent, down, result("d", 0.5), result("e", 0.0), result("f")])

    assert {kind: [each.id for each in failed] for kind, failed in found.items()} == {
        "no answer: max_iterations": ["a", "b"],
        "not scored: llm": ["c"],
        "partly right": ["d"],
        "wrong answer": ["e"],
    }
    assert next(iter(found)) == "no answer: max_iterations"


def epochs_of(scores: dict[str, list[float]]) -> list[Result]:
    """Results of tasks that ran several times."""
    return [
        replace(result(name if epoch == 1 else f"{name}#{epoch}", score), epoch=epoch)
        for name, each in scores.items()
        for epoch, score in enumerate(each, 1)
    ]


def test_epochs_of_a_task_are_one_task_in_intervals_and_comparisons(tmp_path: Path) -> None:
    first = epochs_of({f"t{number}": [1.0, 0.0, 1.0] for number in range(8)})
    second = epochs_of({f"t{number}": [0.0, 0.0, 0.0] for number in range(8)})
    path = written(tmp_path / "r", *first)
    recorded = read_results(path).results
    assert [each.epoch for each in recorded] == [each.epoch for each in first]
    whole, *epochs = summarize_results(recorded).scores
    once = summarize_results([result(f"t{number}", 2 / 3) for number in range(8)]).scores[0]
    assert (whole.n, whole.mean, whole.low, whole.high) == (24, once.mean, once.low, once.high)
    assert [(each.name, each.n) for each in epochs] == [(f"epoch {n}", 8) for n in (1, 2, 3)]
    assert summarize_results(recorded).epoch_deviation == pytest.approx(0.5773502)
    found = compare(first, second)
    assert found.differences[0].n == 8
    assert found.differences[0].mean == pytest.approx(-2 / 3)
    assert {each.id for each in found.worse} == {f"t{number}" for number in range(8)}
    assert found.worse[0].before.score == pytest.approx(2 / 3)
    # A file of one epoch has the same tasks.
    assert compare(first, [result("t0", 1.0)]).differences[0].n == 1
