"""The section on TRL of docs/training.md: its examples run."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = (Path(__file__).parents[3] / "docs" / "training.md").read_text(encoding="utf-8")
SECTION = PAGE.partition("\n## TRL\n")[2].partition("\n## ")[0]
EXAMPLES = re.findall(r"^```python\n(.*?)^```\n", SECTION, re.MULTILINE | re.DOTALL)


def test_the_examples_run_one_after_another(model, tokenizer, tmp_path):
    names = {"model": model, "tokenizer": tokenizer, "folder": str(tmp_path), "__name__": "page"}
    assert len(EXAMPLES) == 2
    for number, code in enumerate(EXAMPLES):
        exec(compile(code, f"example {number}", "exec"), names)
        assert names["trainer"].state.global_step == 1
