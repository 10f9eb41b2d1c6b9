"""The baseline of docs/evaluation.md runs as printed, and the page names what there is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from repl_env.evaluation import RUBRICS
from repl_env.tasks.generators import KINDS, make_task
from tests.cli.calls import caller

PAGE = (Path(__file__).parents[1] / "docs" / "evaluation.md").read_text(encoding="utf-8")


def test_the_baseline_answers_tasks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, code = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    (tmp_path / "baseline.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    bench_tasks = caller("bench-tasks", capsys, monkeypatch)
    made = bench_tasks("make", "--out", "t", "--n", "9", "--kind", "single-needle", "--size", "1k")
    evaluate = caller("eval", capsys, monkeypatch)
    arguments = ("t", "--solver", "baseline.py:first_code", "--out")
    done = [evaluate(*arguments, file) for file in ("before.jsonl", "after.jsonl")]

    assert [each.returncode for each in (made, *done)] == [0, 0, 0]
    assert "9 of 9 tasks scored" in done[0].stdout
    exec(compile(reading, "docs/evaluation.md", "exec"), {})
    assert re.match(r"0\.0 -0\.\d+ 0\.\d+\nwrong answer \d None\n", capsys.readouterr().out)


def test_kinds_and_rubrics_are_on_the_page() -> None:
    for kind in KINDS:
        rubric = make_task(kind, 1_000, 1).rubric
        assert re.search(rf"^\| `{kind.replace('_', '-')}` .* \| {rubric} \|$", PAGE, re.MULTILINE)
    for rubric in RUBRICS:
        assert f"\n| `{rubric}` | " in PAGE
