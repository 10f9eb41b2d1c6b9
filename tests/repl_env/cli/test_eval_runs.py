"""`repl-env eval` with real runs in real sessions: scripted, and through an endpoint."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from repl_env.evaluation import read_results
from repl_env.rlm import Trajectory
from tests.repl_env.cli.calls import Call
from tests.repl_env.cli.test_eval import dataset, evaluate, results, table  # noqa: F401 (fixtures)
from tests.repl_env.llm.endpoint import Hang, Status

# Replies as a model would write them: right for some of the tasks. The script and the endpoint have
# the same text, so both give the same table, tokens included.
REPLY = """```repl
import re
from collections import Counter
rows = [line.split(' | ') for line in context.splitlines() if line.count(' | ') >= 3]
kind = llm_query('which label?')
if rows:
    FINAL(Counter(row[2] for row in rows).most_common(1)[0][0])
else:
    FINAL((re.findall('[A-Z]{3}-[0-9]{5}', context) or ['none'])[0])
```"""
SCRIPT = f"""
REPLY = {REPLY!r}

def reply(request):
    return REPLY if request.messages[0]["role"] == "system" else "a label"
"""


@pytest.fixture
def script(tmp_path: Path) -> str:
    (tmp_path / "model.py").write_text(SCRIPT)
    return f"script:{tmp_path}/model.py:reply"


@pytest.fixture(autouse=True)
def no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)


class Stalling:
    """Answers like the script, until so many runs were asked for; `go_on` lets the rest pass."""

    def __init__(self, runs: int, width: int) -> None:
        self.stuck = threading.Event()
        self._left, self._missing = runs, width

    def __call__(self, asked):
        if asked.body["messages"][0]["role"] != "system":
            return "a label"
        if self._left:
            self._left -= 1
            return REPLY
        self._missing -= 1
        if not self._missing:
            self.stuck.set()
        return Hang()

    def go_on(self) -> None:
        self._left = 1_000_000


@pytest.mark.parametrize(
    ("tasks", "before_it"), [(48, 20), pytest.param(200, 90, marks=pytest.mark.slow)]
)
def test_an_evaluation_of_runs_that_is_killed_goes_on_to_the_same_table(
    evaluate: Call,  # noqa: F811
    dataset: Path,  # noqa: F811
    script: str,
    endpoint,
    tmp_path: Path,
    tasks: int,
    before_it: int,
) -> None:
    whole = evaluate("--model", script, "--limit", str(tasks), "--json")
    answers = Stalling(runs=before_it, width=16)
    served = endpoint(answers)
    out = tmp_path / "results.jsonl"
    arguments = ["--model", "m", "--base-url", served.base_url, "--limit", str(tasks)]
    arguments += ["--out", str(out), "--json"]
    program = [sys.executable, "-m", "repl_env", "eval", str(dataset)]
    command = [*program, "--concurrency", "16", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ}) as process:
        assert answers.stuck.wait(300)
        process.send_signal(signal.SIGKILL)
    before = results(out)
    answers.go_on()
    resumed = evaluate(*arguments)

    assert len(before) == before_it
    assert (whole.returncode, resumed.returncode) == (0, 0), resumed.stderr
    assert len(results(out)) == len(set(results(out))) == tasks
    found = table(resumed)
    assert found == table(whole)
    assert (found["scored"], found["calls"]) == (tasks, 2 * tasks)
    assert 0 < found["scores"][0]["mean"] < 1
    assert 16 <= served.most_in_flight <= 32


def test_an_endpoint_that_is_down_is_no_score(evaluate: Call, endpoint, tmp_path: Path) -> None:  # noqa: F811
    served = endpoint(Status(400, {"error": {"message": "no such model"}}))
    arguments = ["--model", "m", "--base-url", served.base_url, "--out", str(tmp_path / "r")]
    arguments += ["--trajectory", str(tmp_path / "runs")]
    failed = evaluate(*arguments, "--limit", "6", "--json")

    assert failed.returncode == 5
    summary = json.loads(failed.stdout)
    assert (summary["scored"], summary["scores"][0]["mean"]) == (0, None)
    assert {each["error_kind"] for each in summary["failures"]} == {"llm"}
    assert "6 of 6 tasks have no score" in failed.stderr
    found = read_results(tmp_path / "r")
    assert all(found.trajectory(each).exists() for each in found.results)


def test_a_script_that_leaves_the_process_is_a_model_that_failed(
    evaluate: Call,  # noqa: F811
    tmp_path: Path,
) -> None:
    (tmp_path / "leaves.py").write_text("import sys\ndef reply(request):\n    sys.exit(0)\n")
    model = f"script:{tmp_path}/leaves.py:reply"
    done = evaluate("--model", model, "--limit", "4", "--json")

    assert done.returncode == 5
    failures = json.loads(done.stdout)["failures"]
    assert [failure["error_kind"] for failure in failures] == ["llm"] * 4


def test_each_task_may_have_its_trajectory(evaluate: Call, script: str, tmp_path: Path) -> None:  # noqa: F811
    folder = tmp_path / "runs"
    out = tmp_path / "out" / "results.jsonl"
    out.parent.mkdir()
    arguments = ("--model", script, "--limit", "3", "--trajectory", str(folder), "--out", str(out))
    assert evaluate(*arguments).returncode == 0
    assert evaluate(*arguments, "--fresh").returncode == 0  # a run of the same task replaces it

    files = sorted(folder.iterdir())
    assert [file.name for file in files] == [
        "aggregation-3000-1000002.jsonl",
        "multi_needle-3000-1000001.jsonl",
        "single_needle-3000-1000000.jsonl",
    ]
    assert all(Trajectory.load(file).complete for file in files)
    found = read_results(out)
    assert sorted(found.trajectory(each).resolve() for each in found.results) == files
    assert all(each.question and each.expected for each in found.results)
    assert {each.trajectory.split("/")[:2][1] for each in found.results} == {"runs"}  # ../runs/…


def test_the_options_of_runs_are_those_of_the_command_run(
    evaluate: Call,  # noqa: F811
    script: str,
    tmp_path: Path,
) -> None:
    done = evaluate(
        *("--model", script, "--sub-model", script, "--limit", "2", "--blocks", "first"),
        *("--max-depth", "1", "--max-iterations", "2", "--budget-tokens", ":5000"),
        *("--budget-usd", "1", "--price", "model:reply=1:2", "--preload", "json"),
        *("--timeout", "60", "--memory", "200MiB", "--isolation", "auto", "--json"),
    )

    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert (summary["scored"], summary["calls"]) == (2, 4)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--model", "m"), "OPENAI_API_KEY is not set"),
        (("--model", "{script}", "--sub-model", "script:absent.py:f"), "there is no file absent"),
        (("--model", "{script}", "--budget-usd", "-1"), "--budget-usd"),
        (("--model", "{script}", "--memory", "much"), "memory='much'"),
        (("--model", "{script}", "--trajectory", "{tmp}/model.py"), "File exists"),
        (("--model", "{script}", "--blocks", "none"), "none"),
        (("--base-url", "http://127.0.0.1:1/v1"), "--model"),
    ],
)
def test_a_wrong_option_of_runs_is_a_usage_error(
    evaluate: Call,  # noqa: F811
    script: str,
    tmp_path: Path,
    arguments: tuple[str, ...],
    says: str,
) -> None:
    done = evaluate(*(each.format(script=script, tmp=tmp_path) for each in arguments))

    assert done.returncode == 2
    assert says in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


def test_a_run_without_an_answer_has_the_error_of_its_last_cells(
    evaluate: Call,  # noqa: F811
    tmp_path: Path,
) -> None:
    code = "def reply(request):\n    return '```repl\\nnothing_of_that_name\\n```'\n"
    (tmp_path / "fails.py").write_text(code)
    out = tmp_path / "r"
    model = f"script:{tmp_path}/fails.py:reply"
    done = evaluate("--model", model, "--max-iterations", "2", "--limit", "1", "--out", str(out))

    assert done.returncode == 0
    (failed,) = read_results(out).results
    assert (failed.score, failed.stop_reason) == (0.0, "max_iterations")
    raised = "raised NameError: name 'nothing_of_that_name' is not defined"
    assert failed.error == f"the last 3 cells {raised}"

    evaluate(
        *("--model", model, "--limit", "1", "--out", str(out), "--fresh", "--budget-calls", "1")
    )
    (failed,) = read_results(out).results
    assert failed.error == f"budget: 1 of 1 calls are used; the last cell {raised}"
