"""docs/policies.md says what the code does: its example, and the table of modules."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from repl_sandbox.policies.modules import TABLE

PAGE = (Path(__file__).parents[1] / "docs" / "policies.md").read_text(encoding="utf-8")


def test_the_example_prints_what_the_page_says() -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    (text,) = re.findall(r"^```text\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True
    )

    assert done.stdout == text


def test_the_table_of_modules_is_that_of_the_code() -> None:
    rows = re.findall(r"^\| `([\w.]+)` \| (yes|no) \| (.*) \|$", PAGE, re.MULTILINE)

    assert rows == [(row.module, "yes" if row.default else "no", row.reason) for row in TABLE]
