"""docs/policies.md says what the code does: the table of modules."""

from __future__ import annotations

import re
from pathlib import Path

from repl_sandbox.policies.modules import TABLE

PAGE = (Path(__file__).parents[2] / "docs" / "policies.md").read_text(encoding="utf-8")


def test_the_table_of_modules_is_that_of_the_code() -> None:
    rows = re.findall(r"^\| `([\w.]+)` \| (yes|no) \| (.*) \|$", PAGE, re.MULTILINE)

    assert rows == [(row.module, "yes" if row.default else "no", row.reason) for row in TABLE]
