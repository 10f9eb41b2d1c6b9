"""Examples of docs/training.md."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs" / "training.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    """The text of a section."""
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


def example(title: str) -> tuple[str, str]:
    """The Python of a section, and the text that the page says it prints, if any."""
    text = section(title)
    code = re.search(r"```python\n(.*?)\n```\n", text, re.DOTALL)
    printed = re.search(r"```text\n(.*?)```", text, re.DOTALL)
    assert code is not None
    return code[1], printed[1] if printed else ""
