"""Each tier does what every backend must where an ordinary user asks for it, too."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.conformance import CHECKS

SCRIPT = """
import dataclasses, json
from repl_sandbox import Sandbox
from tests.conformance import run
with Sandbox(isolation="{tier}") as sandbox:
    report = run(sandbox.session)
print(json.dumps(dataclasses.asdict(report)))
"""


TIERS = ("jailed", "confined", "process")


@pytest.fixture(scope="module")
def reports(user: Callable[[str], Any]) -> dict[str, Any]:
    """Return the report of each tier; the tiers run in parallel, for they mostly wait."""
    with ThreadPoolExecutor(len(TIERS)) as pool:
        found = pool.map(lambda tier: user(SCRIPT.format(tier=tier)), TIERS)
        return dict(zip(TIERS, found, strict=True))


@pytest.mark.parametrize("tier", TIERS)
def test_a_tier_conforms_where_an_ordinary_user_asks(tier: str, reports: dict[str, Any]) -> None:
    report = reports[tier]
    expected = {
        check.name: "not applicable" if tier in check.not_for else "passed" for check in CHECKS
    }
    assert [result for result in report["results"] if result["status"] == "failed"] == []
    assert {result["name"]: result["status"] for result in report["results"]} == expected
    assert report["tier"] == tier
