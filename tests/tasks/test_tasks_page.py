"""The examples of docs/tasks.md run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "tasks.md").read_text(encoding="utf-8")
EXAMPLES = [
    code
    for code in re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    # The others are for evaluators, or need a checkout that the user has.
    if "import" in code and "mlgym" not in code.lower()
]


@pytest.mark.parametrize("code", EXAMPLES, ids=range(len(EXAMPLES)))
def test_an_example_of_the_page_runs(code, capsys):
    exec(code, {})

    assert capsys.readouterr().out


def test_the_page_has_examples():
    assert len(EXAMPLES) == 3
