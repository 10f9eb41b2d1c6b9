"""`repl-env eval`: a dataset is scored, whatever ends the process on the way."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from statistics import stdev
from typing import Any

import pytest

from repl_env.evaluation.report import interval
from repl_env.tasks.generators import KINDS, make_task
from tests.repl_env.cli.calls import Call, Done, caller
from tests.test_imports import loaded_by
from tests.waiting import PATIENCE

# Solvers as users write them. `slow` prints when a number of tasks has begun, and then waits
# forever, so that the test knows the state of the process that it ends.
SOLVERS = """
import asyncio, os, threading, zlib
from repl_env.errors import ModelError
from repl_env.evaluation import Solved
from repl_env.rlm import Spent
from repl_sandbox.errors import IsolationError

def answer(task):
    n = zlib.crc32(task.id.encode())
    if n % 11 == 0:
        return Solved(None, stop_reason="iterations", error_kind="exception", spent=Spent(calls=9))
    text = task.answer if n % 4 else "none of it"
    spent = Spent(calls=n % 5, input_tokens=n % 1000, output_tokens=n % 7, usd=(n % 100) / 1000)
    return Solved(str(text), text, stop_reason="answer", spent=spent)

async def right(task):
    return task.answer

async def steady(task):
    await asyncio.sleep(0.001)
    return answer(task)

begun = 0

async def slow(task):
    global begun
    begun += 1
    if begun > 90:
        if begun == 90 + 16:
            print("stuck", flush=True)
        await asyncio.Event().wait()
    return await steady(task)

def plain(task):
    return task.answer

def blocks(task):
    print("stuck", flush=True)
    threading.Event().wait()

async def down(task):
    raise ModelError("connection", "refused", retryable=True)

async def sick(task):
    if "000003" in task.id:
        raise ModelError("rate_limit", "slow down", retryable=True)
    return task.answer

async def nowhere(task):
    if "000003" in task.id:
        raise IsolationError("jailed", "namespaces", "not here", "ask root")
    return task.answer

def odd(expected, answer):
    return 0.25

def request(request):
    return "text"
"""


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """200 generated tasks."""
    path = tmp_path_factory.mktemp("data") / "tasks.jsonl"
    tasks = (make_task([*KINDS][n % 4], 3_000, 1_000_000 + n) for n in range(200))
    path.write_text("".join(json.dumps(task.record()) + "\n" for task in tasks))
    return path


@pytest.fixture
def solvers(tmp_path: Path) -> Path:
    path = tmp_path / "solvers_for_a_test.py"
    path.write_text(SOLVERS)
    return path


@pytest.fixture
def evaluate(
    dataset: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Call:
    """`repl-env eval` over the dataset, 16 at once."""
    call = caller("eval", capsys, monkeypatch)
    return lambda *arguments, of=dataset: call(str(of), "--concurrency", "16", *arguments)


def table(done: Done) -> dict[str, Any]:
    """The output of `--json`, without the fields that may differ between two runs."""
    summary: dict[str, Any] = json.loads(done.stdout)
    assert summary.pop("seconds_p50") <= summary.pop("seconds_p95")
    return summary


def results(out: Path) -> list[str]:
    """The ids of the tasks with a complete line, in the order in which they finished."""
    lines = [json.loads(line) for line in out.read_text().splitlines(keepends=True) if "\n" in line]
    return [line["id"] for line in lines if line["type"] == "result"]


def interrupted(dataset: Path, arguments: list[str], how: signal.Signals) -> tuple[int, str]:
    """Status and output of an evaluation that gets `how` with 90 tasks done and 16 begun."""
    ended = signalled(dataset, ["--concurrency", "16", *arguments], how)
    return ended.returncode, ended.stdout


def signalled(dataset: Path, arguments: list[str], how: signal.Signals) -> Done:
    """An evaluation that receives the signal `how` once it has printed that it is stuck."""
    with subprocess.Popen(
        [sys.executable, "-m", "repl_env", "eval", str(dataset), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "NO_COLOR": "1", "COLUMNS": "200"},
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "stuck\n"
        process.send_signal(how)
        try:
            out, err = process.communicate(timeout=PATIENCE)
        finally:
            process.kill()
        return Done(process.returncode, out, err)


def test_an_evaluation_that_is_killed_goes_on_to_the_same_table(
    evaluate: Call, dataset: Path, solvers: Path, tmp_path: Path
) -> None:
    whole = evaluate("--solver", f"{solvers}:steady", "--json")
    out = tmp_path / "results.jsonl"
    arguments = ["--solver", f"{solvers}:slow", "--out", str(out), "--json"]

    status, _ = interrupted(dataset, arguments, signal.SIGKILL)
    assert status == -signal.SIGKILL
    first = results(out)
    with out.open("a") as file:
        file.write('{"type": "result", "id": "half')
    # More than 90 of the remaining tasks begin, so the number of calls equals the number of
    # interruptions.
    status, _ = interrupted(dataset, arguments, signal.SIGKILL)
    assert status == -signal.SIGKILL
    resumed = evaluate(*arguments)

    assert (whole.returncode, resumed.returncode) == (0, 0), resumed.stderr
    assert table(resumed) == table(whole)
    assert len(first) == 90
    assert sorted(results(out)) == sorted(set(results(out)))
    assert len(results(out)) == 200


def test_an_interrupted_evaluation_prints_its_results_so_far_and_exits_130(
    dataset: Path, solvers: Path, tmp_path: Path
) -> None:
    out = tmp_path / "results.jsonl"
    arguments = ["--solver", f"{solvers}:slow", "--out", str(out)]
    status, printed = interrupted(dataset, arguments, signal.SIGINT)

    assert status == 130
    assert "90 of 200 tasks scored" in printed
    assert len(results(out)) == 90


def test_one_ctrl_c_ends_an_evaluation_whose_blocking_solver_hangs(
    dataset: Path, solvers: Path
) -> None:
    arguments = ["--solver", f"{solvers}:blocks", "--concurrency", "1"]
    ended = signalled(dataset, arguments, signal.SIGINT)

    assert ended.returncode == 130
    assert "0 of 200 tasks scored" in ended.stdout
    assert "Traceback" not in ended.stderr


def test_a_table_shows_scores_kinds_and_costs(evaluate: Call, solvers: Path) -> None:
    done = evaluate("--solver", f"{solvers}:steady")

    assert done.returncode == 0, done.stderr
    assert "200 of 200 tasks scored" in done.stdout
    for word in ("single_needle", "pairs", "95 % interval", "answer ", "exception ", "p95", "$"):
        assert word in done.stdout


def test_a_finished_evaluation_calls_no_model_again(
    evaluate: Call, solvers: Path, tmp_path: Path
) -> None:
    out = tmp_path / "r"
    arguments = ("--solver", f"{solvers}:right", "--out", str(out), "--json")
    first, second = evaluate(*arguments), evaluate(*arguments)

    assert json.loads(first.stdout) == json.loads(second.stdout)
    assert len(results(out)) == 200
    assert evaluate(*arguments, "--fresh").returncode == 0
    assert len(results(out)) == 200


def test_epochs_are_scored_each_and_together_and_can_be_raised(
    evaluate: Call, tmp_path: Path
) -> None:
    # Task 0 is right in each epoch, task 1 in the first alone.
    (tmp_path / "again.py").write_text(
        "def answer(task):\n    first, _, epoch = task.id.partition('#')\n"
        "    return task.answer if '000000' in task.id or not epoch else 'wrong'\n"
    )
    solver = ["--solver", f"{tmp_path}/again.py:answer", "--limit", "2"]
    solver += ["--out", str(tmp_path / "epochs.jsonl")]
    one = table(evaluate(*solver, "--json"))
    assert (one["tasks"], one["epoch_deviation"]) == (2, None)
    assert [row["name"] for row in one["scores"] if "epoch" in row["name"]] == []

    three = evaluate(*solver, "--epochs", "3", "--json")
    assert "results of 2 of 6 tasks; 4 tasks to run" in three.stderr
    found = table(three)
    rows = {row["name"]: row for row in found["scores"]}
    assert [rows[f"epoch {n}"]["mean"] for n in (1, 2, 3)] == [1.0, 0.5, 0.5]
    assert (rows["all"]["n"], rows["all"]["mean"]) == (6, pytest.approx(4 / 6))
    # Six scores of two tasks say no more about other tasks than two means do.
    assert (rows["all"]["low"], rows["all"]["high"]) == interval([1.0, 1 / 3])
    assert found["epoch_deviation"] == pytest.approx(stdev([1.0, 0.5, 0.5]))
    assert "standard deviation of epochs" in evaluate(*solver, "--epochs", "3").stdout


def test_a_limit_can_be_raised(evaluate: Call, solvers: Path, tmp_path: Path) -> None:
    out = tmp_path / "r"
    arguments = ("--solver", f"{solvers}:plain", "--out", str(out))
    for limit in ("5", "12"):
        done = evaluate(*arguments, "--limit", limit)
        assert done.returncode == 0

    assert len(results(out)) == 12
    assert "has results of 5 of 12 tasks; 7 tasks to run." in done.stderr
    changed = evaluate("--solver", f"{solvers}:right", "--out", str(out), "--limit", "1")
    assert "no result of these tasks with these settings; 1 task to run." in changed.stderr


def test_off_a_terminal_progress_is_plain_lines(evaluate: Call, solvers: Path) -> None:
    lines = evaluate("--solver", f"{solvers}:sick").stderr.splitlines()

    first = lines.index("pairs-3000-1000003 has no score: llm: rate_limit: slow down")
    assert first < 20
    told = [line for line in lines if " of 200 tasks: " in line]
    assert 20 <= len(told) <= 21
    assert told[0].startswith(("9 of", "10 of"))
    assert told[-1].startswith("199 of 200 tasks: score 1.000, 1 failed, ")


def test_failures_are_listed_not_scored_and_run_again(
    evaluate: Call, solvers: Path, tmp_path: Path
) -> None:
    arguments = ["--solver", f"{solvers}:sick", "--out", str(tmp_path / "r"), "--limit", "40"]
    done = evaluate(*arguments)

    assert done.returncode == 5
    assert "39 of 40 tasks scored" in done.stdout
    assert "rate_limit: slow down" in done.stdout
    assert "pairs-3000-1000003" in done.stdout
    assert "1 of 40 tasks has no score" in done.stderr
    assert json.loads(evaluate(*arguments, "--json").stdout)["scores"][0]["mean"] == 1.0
    assert len(results(tmp_path / "r")) == 41


def test_an_evaluation_ends_when_the_model_is_down(evaluate: Call, solvers: Path) -> None:
    done = evaluate("--solver", f"{solvers}:down", "--give-up-after", "5", "--json")

    assert done.returncode == 5
    assert json.loads(done.stdout)["scores"][0] == {
        "name": "all", "n": 0, "mean": None, "low": None, "high": None,
    }  # fmt: skip
    assert "in a row failed" in done.stderr


def test_an_unavailable_tier_ends_an_evaluation(
    evaluate: Call, solvers: Path, tmp_path: Path
) -> None:
    done = evaluate("--solver", f"{solvers}:nowhere", "--out", str(tmp_path / "r"))

    assert done.returncode == 3
    assert "ask root" in done.stderr
    assert "of 200 tasks scored" in done.stdout


def test_a_full_disk_ends_an_evaluation_with_the_results_so_far(
    evaluate: Call, solvers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from repl_env.evaluation import ResultsFile

    def full(self, result) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(ResultsFile, "append", full)
    done = evaluate("--solver", f"{solvers}:right", "--out", str(tmp_path / "r"))

    assert done.returncode == 1
    assert "Results cannot be written: No space left on device" in done.stderr
    assert "0 of 200 tasks scored" in done.stdout


def test_a_disk_that_is_full_from_the_start_is_reported(
    evaluate: Call, solvers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from repl_env.evaluation import ResultsFile

    def full(self, settings) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(ResultsFile, "note", full)
    done = evaluate("--solver", f"{solvers}:right", "--out", str(tmp_path / "r"))

    assert done.returncode == 1
    assert done.stderr == "Results cannot be written: No space left on device\n"


@pytest.mark.parametrize(
    ("rubric", "mean"), [("list", 1.0), ("{solvers}:odd", 0.25), ("json", 1.0)]
)
def test_a_rubric_can_be_chosen(evaluate: Call, solvers: Path, rubric: str, mean: float) -> None:
    chosen = rubric.format(solvers=solvers)
    done = evaluate("--solver", f"{solvers}:right", "--rubric", chosen, "--json")

    assert json.loads(done.stdout)["scores"][0]["mean"] == mean


def test_a_module_of_the_current_folder_is_found(
    evaluate: Call, solvers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(solvers.parent)
    monkeypatch.setattr(sys, "path", list(sys.path))
    done = evaluate("--solver", "solvers_for_a_test:right", "--limit", "1")

    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "give --model or --solver"),
        (("--solver", "right", "--model", "m"), "give --model or --solver, not both"),
        *(
            (("--solver", "{solvers}:right", *option), f"{option[0]}: goes with --model")
            for option in (
                *(("--trajectory", "{solvers}.d"), ("--sub-model", "m"), ("--base-url", "u")),
                *(("--budget-calls", "200"), ("--max-depth", "1"), ("--isolation", "auto")),
                *(("--price", "m=1:1"), ("--preload", "json"), ("--memory", "1GiB")),
            )
        ),
        (("--solver", "right"), "is not of the form module:function"),
        (("--solver", "absent.py:right"), "there is no file absent.py"),
        (("--solver", "no_such_module_here:f"), "No module named"),
        (("--solver", "{solvers}:nobody"), "nobody"),
        (("--solver", "{solvers}:begun"), "is int, not a function"),
        (("--solver", "{solvers}:right", "--rubric", "close"), "none of exact, fuzzy, json, list"),
        (("--solver", "{solvers}:right", "--concurrency", "0"), "--concurrency"),
        (("--solver", "{solvers}:right", "--out", "{solvers}"), "is not a file of results"),
    ],
)
def test_a_wrong_option_is_a_usage_error(
    evaluate: Call, solvers: Path, arguments: tuple[str, ...], says: str
) -> None:
    done = evaluate(*(each.format(solvers=solvers) for each in arguments))

    assert done.returncode == 2
    assert says in done.stderr.replace("\n", " ")
    assert "Traceback" not in done.stderr


def test_a_broken_line_is_reported_before_anything_runs(
    evaluate: Call, solvers: Path, tmp_path: Path
) -> None:
    path = tmp_path / "broken.jsonl"
    path.write_text('{"id": "a", "question": "q", "context": "c", "answer": 1}\n{"id": "b"\n')
    done = evaluate("--solver", f"{solvers}:right", "--out", str(tmp_path / "r"), of=path)

    assert done.returncode == 2
    assert "broken.jsonl, line 2: not JSON" in done.stderr
    assert not (tmp_path / "r").exists()


def test_a_results_file_in_use_is_a_usage_error(
    evaluate: Call, solvers: Path, tmp_path: Path
) -> None:
    from repl_env.evaluation import ResultsFile

    held = ResultsFile(tmp_path / "r")
    done = evaluate("--solver", f"{solvers}:right", "--out", str(tmp_path / "r"))
    held.close()

    assert done.returncode == 2
    assert "in use by another evaluation" in done.stderr


@pytest.mark.parametrize("module", ["evaluate", "tasks"])
def test_an_unused_command_loads_little(module: str) -> None:
    modules = loaded_by(f"repl_env.cli.{module}", "")

    assert not modules & {
        "asyncio",
        "repl_env.evaluation.evaluator",
        "repl_env.tasks.generators",
        "pydantic",
    }
    assert not any(name.startswith("repl_sandbox") for name in modules)


def test_a_scripted_model_is_evaluated_offline(evaluate: Call, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("def answer(request):\n    return \"```repl\\nFINAL('nothing')\\n```\"\n")
    done = evaluate("--model", f"script:{script}:answer", "--limit", "4", "--json")

    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert (summary["scored"], summary["scores"][0]["mean"]) == (4, 0.0)
    assert summary["calls"] == 4
