"""Commands are readable in narrow terminals: no word of a wide one is broken or missing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.repl_env.cli.calls import application
from tests.repl_env.cli.test_results import first, second  # noqa: F401 (fixtures)

SOLVER = "def right(task):\n    return task.answer\n"


def printed(arguments: list[str], columns: int) -> str:
    done = CliRunner(env={"COLUMNS": str(columns)}).invoke(application(), arguments)
    assert done.exit_code in (0, 1), done.output
    return done.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ["results", "{first}"],
        ["results", "{first}", "{second}"],
        ["tasks", "list"],
        ["config", "show", "serve"],
        ["eval", "tasks.jsonl", "--solver", "solver.py:right"],
    ],
    ids=" ".join,
)
def test_a_narrow_terminal_has_all_words_of_a_wide_one(
    first: str,  # noqa: F811
    second: str,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "solver.py").write_text(SOLVER)
    kinds = ("a kind of tasks with a long name", "another kind of tasks with a long name")
    tasks = [
        {"id": kind, "question": "?", "context": None, "answer": "1", "metadata": {"kind": kind}}
        for kind in kinds
    ]
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(each) + "\n" for each in tasks))
    given = [Path(each.format(first=first, second=second)).name for each in arguments]
    # The times that an evaluation takes differ from call to call.
    words = {word for word in printed(given, 200).split() if not word.startswith(("0.", "─"))}

    for columns in (80, 60):
        told = printed(given, columns)
        assert "…" not in told
        assert [line for line in told.splitlines() if len(line) > columns] == []
        # Records have no heading of the first column.
        assert words - set(told.split()) <= {"task", "option"}
