"""The section on Gymnasium of docs/training.md: its example runs and prints what the page says."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = (Path(__file__).parents[3] / "docs" / "training.md").read_text(encoding="utf-8")
SECTION = re.search(r"^## Gymnasium\n(.*?)^## ", PAGE, re.MULTILINE | re.DOTALL)[1]


def test_example_prints_what_the_page_says(capsys):
    code, text = re.search(r"```python\n(.*?)```\n\n```text\n(.*?)```", SECTION, re.DOTALL).groups()
    exec(compile(code, "example", "exec"), {"__name__": "page"})
    assert capsys.readouterr().out == text
