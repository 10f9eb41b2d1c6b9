"""`repl-env results`: wrong answers, kinds of failures, two evaluations compared, a plot."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.repl_env.cli.calls import Call, caller
from tests.repl_env.evaluation.result_files import result, written

PNG = b"\x89PNG\r\n\x1a\n"
ASKED = {"question": "How many lines name a harbour?", "expected": [1, 2]}


@pytest.fixture
def show(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    """`repl-env results`."""
    return caller("results", capsys, monkeypatch)


@pytest.fixture
def first(tmp_path: Path) -> str:
    """A file with a task of each ending."""
    wrong = replace(
        result("wrong", 0.0), **ASKED, answer="\x1b]0;title\x07 3", trajectory="w.jsonl"
    )
    silent = replace(result("silent", 0.0), answer=None, stop_reason="max_iterations")
    down = replace(result("down", None), error_kind="llm", error="rate_limit: slow down", **ASKED)
    half = replace(result("half", 0.5), kind="list", **ASKED)
    right = replace(result("right"), kind="list", **ASKED)
    return str(written(tmp_path / "first.jsonl", wrong, silent, down, half, right))


@pytest.fixture
def second(tmp_path: Path) -> str:
    """A later file: two tasks better, one worse, one of another question, one alone."""
    better = replace(result("half", 1.0), kind="list", **ASKED)
    worse = replace(result("right", 0.0), kind="list", answer="nothing", **ASKED)
    other = replace(result("wrong", 1.0), question="another?", expected=1)
    alone = [result("silent", 1.0), result("new")]
    return str(written(tmp_path / "second.jsonl", better, worse, other, *alone))


def test_a_file_is_told_with_the_kinds_of_its_failures_and_the_failed_tasks(
    show: Call, first: str, tmp_path: Path
) -> None:
    done = show(first)
    told = " ".join(done.stdout.split())

    assert done.returncode == 0
    assert "4 of 5 tasks scored" in told
    for kind in ("wrong answer 1 wrong", "no answer: max_iterations 1 silent", "partly right 1"):
        assert kind in told
    assert "not scored: llm 1 down" in told
    assert "question How many lines name a harbour? expected [1, 2] answer ]0;title 3" in told
    assert "error rate_limit: slow down" in told
    assert f"trajectory {tmp_path / 'w.jsonl'}" in told
    assert "\x1b" not in done.stdout


def test_the_lists_are_as_long_as_asked(show: Call, first: str) -> None:
    assert "and 3 more; --limit 0 lists all." in show(first, "--limit", "1").stdout
    assert "more; --limit" not in show(first, "--limit", "0").stdout


def test_two_files_are_compared_task_by_task(show: Call, first: str, second: str) -> None:
    done = show(first, second)
    told = " ".join(done.stdout.split())

    assert done.returncode == 0
    assert "all 3 0.5000 0.6667 +0.1667" in told
    assert "list 2 0.7500 0.5000 -0.2500" in told
    assert "the interval of the difference contains 0" in told.lower()
    assert "Worse: 1 right: 1 → 0" in told
    assert "Better: 2 silent: 0 → 1" in told
    assert "1 are not the same task in both files, and left out: wrong" in told
    assert "1 are scored in the second file only: new" in told


def test_json_has_the_same_facts(show: Call, first: str, second: str) -> None:
    told = json.loads(show(first, second, "--json").stdout)

    assert [*told["file"]["failures"]] == [
        "no answer: max_iterations",
        "not scored: llm",
        "partly right",
        "wrong answer",
    ]
    assert told["file"]["summary"]["scored"] == 4
    assert told["comparison"]["differences"][0]["mean"] == pytest.approx(1 / 6)
    assert told["comparison"]["worse"][0]["answer_after"] == "nothing"
    assert "comparison" not in json.loads(show(first, "--json").stdout)


def test_a_plot_is_written_for_one_file_and_for_two(
    show: Call, first: str, second: str, tmp_path: Path
) -> None:
    plot = tmp_path / "plot.png"
    plot.write_text("of an earlier call")

    assert show(first, "--png", str(plot)).returncode == 0
    one = plot.read_bytes()
    assert show(first, second, "--png", str(plot)).returncode == 0
    assert one.startswith(PNG)
    assert plot.read_bytes().startswith(PNG)
    assert plot.read_bytes() != one


def test_without_matplotlib_a_plot_is_refused_with_the_remedy(
    show: Call, first: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.delitem(sys.modules, "repl_env.cli.plot", raising=False)
    done = show(first, "--png", str(tmp_path / "plot.png"))

    assert done.returncode == 1
    assert "pip install matplotlib" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (["absent.jsonl"], 2, "absent.jsonl: No such file"),
        ([__file__], 2, "is not a file of results"),
        (["{first}", "absent.jsonl"], 2, "absent.jsonl: No such file"),
        (["{first}", "--png", "{first}"], 2, "does not end with .png"),
        (["{first}", "--png", "/proc/none/plot.png"], 1, "/proc/none/plot.png: No such file"),
    ],
)
def test_files_that_cannot_be_used_are_named(
    show: Call, first: str, arguments: list[str], status: int, says: str
) -> None:
    done = show(*(each.format(first=first) for each in arguments))

    assert done.returncode == status
    assert says in " ".join(done.stderr.split())


def test_an_empty_file_of_results_says_so(show: Call, tmp_path: Path) -> None:
    empty = str(written(tmp_path / "empty.jsonl"))

    assert "The file has no result yet." in show(empty).stdout
    assert "No task is scored in both files." in show(empty, empty).stdout
