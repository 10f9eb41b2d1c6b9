"""Each tier does what every backend must where an ordinary user asks for it, too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from repl_sandbox.conformance import CHECKS

SCRIPT = """
import dataclasses, json
from repl_sandbox import Sandbox
from repl_sandbox.conformance import run
with Sandbox(isolation="{tier}") as sandbox:
    report = run(sandbox.session)
print(json.dumps(dataclasses.asdict(report)))
"""


@pytest.mark.parametrize("tier", ["jailed", "confined", "process"])
def test_a_tier_conforms_where_an_ordinary_user_asks(tier: str, user: Callable[[str], Any]) -> None:
    report = user(SCRIPT.format(tier=tier))
    expected = {
        check.name: "not applicable" if tier in check.not_for else "passed" for check in CHECKS
    }
    assert [result for result in report["results"] if result["status"] == "failed"] == []
    assert {result["name"]: result["status"] for result in report["results"]} == expected
    assert report["tier"] == tier
