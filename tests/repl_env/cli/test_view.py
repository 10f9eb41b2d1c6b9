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


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("none", "No such file"), ("link", "symbolic link"), ("text", "neither a trajectory"),
        ("/dev/null", "neither a file nor a folder"),
    ],
)  # fmt: skip
def test_what_cannot_be_shown_is_refused(tmp_path, trajectory, capsys, monkeypatch, name, told):
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
