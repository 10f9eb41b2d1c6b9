"""Rows of events, and lists of files that grow, break, or are replaced."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from repl_env.display import files as growing_lines
from repl_env.display.files import NamedFiles
from repl_env.display.viewer import MAX_ROWS, TrajectoryIndex, ViewData, event_row
from repl_env.rlm import TrajectoryWriter
from tests.repl_env.rlm.trajectory.account import account, cell_started, ended, replied, started

HEADER = b'{"format": "repl-env trajectory", "version": 1}\n'


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.jsonl"


def index_of(path: Path) -> TrajectoryIndex:
    (file,) = NamedFiles([path]).files()
    return TrajectoryIndex(file)


def test_each_event_has_a_row_with_its_place(path):
    with TrajectoryWriter(path) as write:
        for event in account():
            write(event)
    data = path.read_bytes()
    rows = index_of(path).rows(0, 0)["rows"]

    assert len(rows) == len(account()) + 1
    for row in rows[1:]:
        event = json.loads(data[row["at"] : row["at"] + row["size"]])
        assert (event["event"], event["run"]) == (row["event"], row["run"])
    turn = next(row for row in rows if row["event"] == "model_replied")
    assert turn["added"] == [("system", 19), ("user", 9)]
    assert (turn["input_tokens"], turn["output_tokens"], turn["usd"]) == (10, 4, 0.25)
    assert rows[-1]["total"]["usd"] == 0.75


def test_a_file_that_grows_has_more_rows_and_a_half_line_waits(path):
    with TrajectoryWriter(path) as write:
        write(started())
        index = index_of(path)
        assert len(index.rows(0, 0)["rows"]) == 2
        write(replied())
        assert [row["event"] for row in index.rows(2, 0)["rows"]] == ["model_replied"]
    line = b'{"event": "cell_started", "run": "0", "cell": 1}'
    with path.open("ab") as file:
        file.write(line)
        file.flush()
        assert index.rows(3, 0)["rows"] == []
        file.write(b"\n")
        file.flush()
        assert len(index.rows(3, 0)["rows"]) == 1


def test_a_file_that_was_replaced_begins_anew(path):
    with TrajectoryWriter(path) as write:
        for event in account():
            write(event)
    index = index_of(path)
    before = index.rows(0, 0)
    path.unlink()
    with TrajectoryWriter(path) as write:
        write(started(question="Another?"))
    after = index.rows(len(before["rows"]), before["generation"])

    assert after["generation"] != before["generation"]
    assert (after["start"], len(after["rows"])) == (0, 2)
    path.write_bytes(b"")
    assert index.rows(2, after["generation"])["rows"] == []


def test_rows_come_in_pieces(path):
    with TrajectoryWriter(path) as write:
        write(started())
        write(replied())
        for cell in range(2 * MAX_ROWS):
            write(cell_started(cell=cell))
    index, found = index_of(path), []
    while True:
        piece = index.rows(len(found), 0, seconds=0.0)
        found += piece["rows"]
        assert len(piece["rows"]) <= MAX_ROWS
        if not piece["more"]:
            break

    assert [row["at"] for row in found] == sorted(row["at"] for row in found)
    assert len(found) == 2 * MAX_ROWS + 3


@pytest.mark.parametrize(
    "line",
    [
        b"", b"{", b"[]", b"null", b"\xff", b"[" * 100_000, b'{"event": 1}', b'{"event": "x"}',
        b'{"event": "run_ended", "run": 7}', b'{"event": "constructor", "run": "0"}',
        *(
            json.dumps({"event": event, "run": "0", **dict.fromkeys(fields, value)}).encode()
            for event, fields in {
                "run_started": ("task", "question", "time", "depth", "max_iterations", "model"),
                "model_replied": ("completion", "added", "kept", "turn", "last"),
                "cell_ran": ("observation", "cell", "code", "seconds"),
                "call_ended": ("call", "kind", "usage", "error", "child"),
                "run_ended": ("total", "reward", "stop_reason", "seconds"),
            }.items()
            for value in ([], {}, "x", 1e300, -1, None, True, [[[]]], {"usage": [], "tokens": 1})
        ),
    ],
)  # fmt: skip
def test_any_line_has_a_row_that_is_json(line):
    assert json.dumps(event_row(line), allow_nan=False)


def test_a_line_that_is_too_long_is_left_out(path, monkeypatch):
    monkeypatch.setattr(growing_lines, "LONGEST_LINE", 1000)
    long = b'{"event": "x", "a": "' + b"y" * 3000 + b'"}\n'
    path.write_bytes(HEADER + long + b'{"event": "run_started", "run": "0"}\n')
    rows = index_of(path).rows(0, 0)["rows"]

    assert [row["event"] for row in rows] == ["header", "broken", "run_started"]


def test_a_list_tells_how_runs_ended_and_which_files_are_broken(tmp_path):
    with TrajectoryWriter(tmp_path / "a.jsonl") as write:
        for event in account():
            write(event)
    going = TrajectoryWriter(tmp_path / "b.jsonl")
    going(started())
    (tmp_path / "c.jsonl").write_text('{"type": "results", "version": 1}\n{broken\n')
    (tmp_path / "d.jsonl").write_text("text")
    (tmp_path / "e.txt").write_bytes(HEADER)
    data = ViewData(NamedFiles([tmp_path]))
    files = {file["name"]: file for file in data.listing()["files"]}

    assert set(files) == {"a.jsonl", "b.jsonl", "c.jsonl"}
    (root,) = files["a.jsonl"]["roots"]
    assert (root["done"], root["group"], root["reward"]) == (True, "g1", 1.0)
    assert files["b.jsonl"]["roots"][0]["done"] is False
    assert "line 2 is damaged" in files["c.jsonl"]["error"]

    with going:
        going(ended())
    again = {file["name"]: file for file in data.listing()["files"]}
    assert set(again) == set(files)
    assert again["b.jsonl"]["roots"][0]["done"] is True


@pytest.mark.parametrize("named", [".", "results.jsonl runs"])
def test_a_task_leads_to_the_trajectory_that_its_result_names(tmp_path, named):
    spent = {"type": "results", "version": 1}
    row = {
        "type": "result", "id": "a", "fingerprint": "f", "kind": None, "score": 1.0, "answer": "x",
        "stop_reason": None, "error_kind": None, "error": None, "seconds": 1.0, "time": 1.0,
        "spent": {}, "question": "q?", "expected": "x", "trajectory": "runs/a.jsonl",
    }  # fmt: skip
    lines = [spent, row, row | {"id": "b", "trajectory": "runs/none.jsonl"}, row | {"id": "c"}]
    lines[-1].pop("trajectory")  # type: ignore[attr-defined]
    (tmp_path / "results.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for folder in ("runs", "other"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.jsonl").write_bytes(HEADER)
    data = ViewData(NamedFiles([tmp_path / part for part in named.split()]))
    ids = {file["name"].removeprefix("runs/"): file["id"] for file in data.listing()["files"]}
    tasks = data.evaluation(ids["results.jsonl"])["tasks"]

    assert [task.get("run") for task in tasks] == [ids["a.jsonl"], None, None]
