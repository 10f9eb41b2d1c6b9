"""`repl-env tasks list | run | check`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from repl_env.cli.tasks import tasks
from repl_env.tasks import load, shipped


def called(*arguments: str):
    return CliRunner().invoke(tasks, list(arguments))


def test_list_has_every_shipped_task():
    result = called("list", "--json")

    assert result.exit_code == 0
    assert [each["name"] for each in json.loads(result.stdout)] == list(shipped())
    assert "blotto" in called("list").stdout


def test_run_shows_the_score_of_a_folder_and_of_the_baseline(tmp_path):
    solution = load("tabular-regression").directory / "solution"
    baseline = called("run", "tabular-regression")
    best = called("run", "tabular-regression", str(solution), "--json")

    assert (baseline.exit_code, best.exit_code) == (0, 0)
    assert "5.42075 (gain 0.000)" in baseline.stdout
    assert json.loads(best.stdout)["gain"] == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize(
    ("arguments", "status", "told"),
    [
        (("run", "nothing-of-that-name"), 1, "none of the shipped tasks"),
        (("run", "blotto", "/no/such/folder"), 2, "is no folder"),
        (("run", "blotto", "{empty}"), 1, "there is no strategy.py"),
        (("check", "{empty}"), 1, "no folder in it has a task.toml"),
        (("list", "/no/such/folder"), 1, "no directory"),
    ],
)
def test_an_unusable_task_exits_with_a_status_and_a_reason(tmp_path: Path, arguments, status, told):
    result = called(*(each.format(empty=tmp_path) for each in arguments))

    assert result.exit_code == status
    assert told in " ".join(result.output.replace("│", " ").split())


def test_check_compares_with_what_the_task_documents(tmp_path):
    import shutil

    wrong = tmp_path / "wrong"
    shutil.copytree(load("tabular-regression").directory, wrong)
    text = (wrong / "task.toml").read_text()
    (wrong / "task.toml").write_text(
        text.replace("reference = 0.7912272630649235", "reference = 0.5")
    )

    right, result = called("check", "tabular-regression"), called("check", str(wrong))

    assert (right.exit_code, right.stdout.count("ok")) == (0, 2)
    assert result.exit_code == 1
    assert "WRONG tabular-regression solution: 0.791227, documented 0.5" in result.stdout
