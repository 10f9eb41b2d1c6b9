"""Only regular files are read, within a bound; what else a path names is said at once."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys

import pytest

from repl_env.common.files import MAX_BYTES, open_regular, read_regular, read_regular_text
from repl_env.evaluation import DatasetError, ResultsError, read_dataset, read_results
from repl_env.rlm import Trajectory


@pytest.fixture(params=["pipe", "socket", "device", "link to a device", "folder", "sparse"])
def odd(request, tmp_path):
    """A path that is no regular file of a usable size, and the reason that a user is told."""
    path = tmp_path / "odd"
    match request.param:
        case "pipe":
            os.mkfifo(path)
            return path, "is a pipe"
        case "socket":
            with socket.socket(socket.AF_UNIX) as bound:
                bound.bind(str(path))
            return path, "is a socket"
        case "device":
            return type(path)("/dev/zero"), "is a device"
        case "link to a device":
            path.symlink_to("/dev/zero")
            return path, "is a device"
        case "folder":
            path.mkdir()
            return path, "Is a directory"
    with path.open("wb") as file:
        os.truncate(file.fileno(), MAX_BYTES + 1)
    return path, "has more than"


def test_only_regular_files_are_read(odd):
    path, told = odd

    with pytest.raises(OSError, match=told):
        read_regular(path)
    with pytest.raises(OSError, match=told):
        Trajectory.load(path)
    with pytest.raises(ResultsError, match=told):
        read_results(path)
    if told != "has more than":
        with pytest.raises(OSError, match=told):
            open_regular(path)
        with pytest.raises(DatasetError, match=told):
            read_dataset(path)


def test_a_regular_file_is_read_as_it_is(tmp_path):
    path, link = tmp_path / "file", tmp_path / "link"
    path.write_bytes(b"\xef\xbb\xbfa\r\nb\rc\n")
    link.symlink_to(path)

    assert read_regular(link) == b"\xef\xbb\xbfa\r\nb\rc\n"
    assert read_regular_text(link) == "a\nb\nc\n"
    assert read_regular("/proc/self/comm") != b""  # its size is 0
    assert read_regular(path, 10) and os.stat(path).st_size == 10
    with pytest.raises(OSError, match="more than 9 bytes"):
        read_regular(path, 9)
    with pytest.raises(FileNotFoundError):
        read_regular(tmp_path / "absent")


COMMANDS = [
    ["replay", "PATH"],
    ["replay", "PATH", "--html", "x.html"],
    ["view", "PATH", "--no-open"],
    ["results", "PATH"],
    ["results", "RESULTS", "PATH"],
    ["eval", "PATH", "--solver", "solver.py:right", "--out", "x.jsonl"],
    ["eval", "tasks.jsonl", "--solver", "solver.py:right", "--out", "PATH"],
    ["repl", "--context", "PATH"],
    ["repl", "--config", "PATH"],
    ["run", "q", "--model", "x", "--context", "a=PATH"],
    ["run", "q", "--model", "x", "--schema", "PATH"],
    ["keys", "alice", "--file", "PATH"],
    ["serve", "--port", "0", "--api-keys", "PATH"],
    ["tasks", "run", "blotto", "FOLDER"],
    ["tasks", "check", "FOLDER/task"],
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_command_that_is_given_a_pipe_says_so(tmp_path, command):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    (tmp_path / "solver.py").write_text("def right(task):\n    return task.answer\n")
    record = {"id": "a", "question": "q", "answer": "1", "context_file": str(pipe)}
    (tmp_path / "tasks.jsonl").write_text(json.dumps(record) + "\n")
    (tmp_path / "results.jsonl").write_text('{"type": "results", "version": 1}\n')
    (tmp_path / "folder" / "task").mkdir(parents=True)
    os.mkfifo(tmp_path / "folder" / "strategy.py")
    os.mkfifo(tmp_path / "folder" / "task" / "task.toml")
    names = {"PATH": pipe, "RESULTS": tmp_path / "results.jsonl", "FOLDER": tmp_path / "folder"}
    for name, path in names.items():
        command = [argument.replace(name, str(path)) for argument in command]

    done = subprocess.run(
        [sys.executable, "-m", "repl_env", *command],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=120,
        check=False,
        stdin=subprocess.DEVNULL,
    )

    assert done.returncode in (1, 2), done.stderr
    told = " ".join((done.stdout + done.stderr).split())
    assert re.search(r"is a pipe|not a regular file|neither a file|no strategy\.py", told)
