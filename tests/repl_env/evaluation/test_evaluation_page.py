"""docs/evaluation.md names every kind of task and every rubric."""

from __future__ import annotations

import re
from pathlib import Path

from repl_env.evaluation import RUBRICS
from repl_env.tasks.generators import KINDS, make_task

PAGE = (Path(__file__).parents[3] / "docs" / "evaluation.md").read_text(encoding="utf-8")


def test_kinds_and_rubrics_are_on_the_page() -> None:
    for kind in KINDS:
        rubric = make_task(kind, 1_000, 1).rubric
        assert re.search(rf"^\| `{kind}` .* \| {rubric} \|$", PAGE, re.MULTILINE)
    for rubric in RUBRICS:
        assert f"\n| `{rubric}` | " in PAGE
