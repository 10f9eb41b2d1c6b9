"""`repl-env view`, and `--html` of other commands."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from repl_env import LocalREPLEnv, Recorder
from repl_env.display.files import NamedFiles
from repl_env.display.viewer import ViewData, viewable
from repl_env.rlm import TrajectoryWriter
from tests.repl_env.cli.calls import caller
from tests.repl_env.rlm.trajectory.account import account


@pytest.fixture
def trajectory(tmp_path: Path) -> Path:
    with TrajectoryWriter(tmp_path / "run.jsonl") as write:
        for event in account():
            write(event)
    return tmp_path / "run.jsonl"


def test_the_printed_address_opens_the_page_until_the_command_is_interrupted(trajectory):
    command = [sys.executable, "-m", "repl_env", "view", "--no-open", str(trajectory)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        found = re.search(r"(http://127\.0\.0\.1:\d+)/#token=([\w-]+)", process.stdout.readline())
        assert found is not None
        request = urllib.request.Request(
            f"{found[1]}/api/files", headers={"Authorization": f"Bearer {found[2]}"}
        )
        with urllib.request.urlopen(request, timeout=20) as reply:
            assert json.load(reply)["files"][0]["name"] == "run.jsonl"
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    """A recorded episode, as a download of the playground is."""
    with LocalREPLEnv() as environment:
        recorder = Recorder(environment)
        recorder.reset(context="one two", task_prompt="How many words?", expected_answer="2")
        recorder.execute("words = context.split()\nprint(words)")
        recorder.execute("1 / 0")
        recorder.execute("FINAL(len(words))")
        (tmp_path / "episode.json").write_text(recorder.recording.to_json())
    return tmp_path / "episode.json"


def test_a_recorded_episode_is_shown_as_a_run_of_its_cells(tmp_path, recording):
    files = NamedFiles([viewable(recording, tmp_path)])
    data = ViewData(files)
    (listed,) = data.listing()["files"]
    (root,) = listed["roots"]

    assert (listed["name"], listed["kind"]) == ("episode.json", "trajectory")
    assert (root["question"], root["answer"]) == ("How many words?", "2")
    assert (root["reward"], root["stop_reason"], root["iterations"]) == (1.0, "answer", 3)
    rows = data.rows(listed["id"], 0, 0)["rows"]
    assert [row["event"] for row in rows] == [
        "header",
        "run_started",
        *["cell_ran"] * 3,
        "run_ended",
    ]
    assert "total" not in rows[5]  # calls and cost are unknown, and not zero
    assert [row["ok"] for row in rows[2:5]] == [True, False, True]
    event = json.loads(data.part(listed["id"], rows[2]["at"], rows[2]["at"] + rows[2]["size"]))
    assert event["observation"]["result"]["stdout"] == "['one', 'two']\n"


def test_a_recorded_episode_without_an_end_and_without_code(tmp_path, recording):
    fields = json.loads(recording.read_text())
    fields["actions"][1] = {"code": "", "is_final": True, "final_answer": [1]}
    fields["actions"][2] = {"code": "", "format_error": "no code"}
    fields["observations"][-1] |= {"done": False, "metadata": {}}
    recording.write_text(json.dumps(fields))
    rows = ViewData(NamedFiles([viewable(recording, tmp_path)])).rows("0", 0, 0)["rows"]

    assert rows[3]["text"] == "# submitted without code: [1]"
    assert rows[4]["text"] == "# a reply without code"
    assert rows[5]["stop_reason"] == "not ended" and "reward" not in rows[5]


def test_replay_names_the_command_for_a_recorded_episode(recording, capsys, monkeypatch):
    done = caller("replay", capsys, monkeypatch)(str(recording))

    assert done.returncode == 2
    assert f"`repl-env view {recording}` shows it" in " ".join(done.stderr.split())


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("none", "No such file"), ("link", "symbolic link"),
        ("text", "not a trajectory, results of eval, or a recorded episode"),
        ("/dev/null", "neither a file nor a folder"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_shown_is_refused(
    tmp_path, trajectory, capsys, monkeypatch, name, told
):
    (tmp_path / "link").symlink_to(trajectory)
    (tmp_path / "text").write_text("text")
    done = caller("view", capsys, monkeypatch)("--no-open", str(tmp_path / name))

    assert done.returncode == 2
    assert told in " ".join(done.stderr.split())


def test_a_run_is_written_as_a_page(tmp_path, trajectory, capsys, monkeypatch):
    replay, out = caller("replay", capsys, monkeypatch), str(tmp_path / "run.html")

    assert replay(str(trajectory), "--html", out).returncode == 0
    assert "How many?" in Path(out).read_text()
    assert replay(str(trajectory), "--html", out, "--max-size", "1MB").returncode == 0
    for wrong in (
        ["--html", str(trajectory)],
        ["--html", str(tmp_path / "none" / "page.html")],
        ["--html", out, "--max-size", "1kB"],
        ["--html", out, "--max-size", "many"],
        ["--html", out, "--execute"],
        ["--html", out, "--json"],
        ["--max-size", "1MB"],
    ):
        assert replay(str(trajectory), *wrong).returncode == 2, wrong


def test_several_files_are_written_as_one_page(
    tmp_path, trajectory, recording, capsys, monkeypatch
):
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text(json.dumps({"id": "t", "question": "?", "context": None, "answer": "1"}))
    (tmp_path / "solver.py").write_text("def solve(task):\n    return '1'\n")
    evaluate = caller("eval", capsys, monkeypatch)
    results = [str(tmp_path / name) for name in ("a.jsonl", "b.jsonl")]
    for out in results:
        solver = f"{tmp_path / 'solver.py'}:solve"
        assert evaluate(str(tasks), "--solver", solver, "--out", out).returncode == 0
    view, out = caller("view", capsys, monkeypatch), tmp_path / "all.html"

    assert view(str(trajectory), str(recording), *results, "--html", str(out)).returncode == 0
    found = re.search(r'<script type="application/json" id="data">(.*)</script>', out.read_text())
    assert found is not None
    data = json.loads(found[1])
    assert [file["name"] for file in data["files"]] == [
        "run.jsonl", "episode.json", "a.jsonl", "b.jsonl",
    ]  # fmt: skip
    assert (data["start"], sorted(data["comparisons"])) == ("#/", ["2/3", "3/2"])
    for wrong in (["--html", str(trajectory)], ["--max-size", "1MB"]):
        assert view(str(trajectory), *wrong).returncode == 2, wrong


def test_an_evaluation_is_written_as_a_page(tmp_path, capsys, monkeypatch):
    tasks, out = tmp_path / "tasks.jsonl", tmp_path / "page.html"
    rows = [{"id": f"t{n}", "question": "?", "context": None, "answer": "1"} for n in range(3)]
    tasks.write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "solver.py").write_text("def one(task):\n    return '1'\n")
    evaluate = caller("eval", capsys, monkeypatch)
    arguments = [str(tasks), "--solver", f"{tmp_path / 'solver.py'}:one", "--html"]

    assert evaluate(*arguments, str(out)).returncode == 0
    assert '"score":1.0' in out.read_text()
    # Before any task is run.
    assert evaluate(*arguments, str(tasks)).returncode == 2


def test_a_system_that_cannot_refuse_links_is_an_error(trajectory, capsys, monkeypatch):
    for name in ("O_NOFOLLOW", "O_CLOEXEC", "O_NONBLOCK", "O_DIRECTORY"):  # Windows has none
        monkeypatch.delattr("os." + name)
    done = caller("view", capsys, monkeypatch)("--no-open", str(trajectory))

    assert done.returncode == 2
    assert "Linux, macOS or WSL" in " ".join(done.stderr.split())
