"""Fork bombs of any user: bounded, named, and answered in time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from repl_sandbox.jail.landlock import kernel_abi
from tests.security.attacks import fork_bombs

PROGRAM = Path(__file__).parent / "fork_bombs.py"
# The fork bombs that must meet the process limit.
FULL = ["daemons", "daemons forked twice", "forks with threads"]
BELOW = fork_bombs.BELOW
TIMEOUT = 1.5
# The processes of a session that forks nothing: init, the worker and its snapshots.
ALONE = 4


@pytest.fixture(scope="module", params=["jailed", "confined", "process"])
def tier(request: pytest.FixtureRequest) -> str:
    if request.param == "confined" and not kernel_abi():
        pytest.skip("this kernel has no Landlock")
    return str(request.param)


@pytest.fixture(scope="module", params=["suite", "ordinary"])
def found(request: pytest.FixtureRequest, tier: str) -> dict[str, Any]:
    """Return the result of each fork bomb."""
    if request.param == "ordinary":
        user: Callable[[str], Any] = request.getfixturevalue("user")
        source = PROGRAM.read_text(encoding="utf-8")
        asked = (tier, None, FULL + BELOW, TIMEOUT)
        result: dict[str, Any] = user(f"{source}\nprint(json.dumps(look(*{asked!r})))")
        return result
    python = None if tier == "jailed" else request.getfixturevalue("open_python")
    return fork_bombs.look(tier, python, FULL + BELOW, TIMEOUT)


@pytest.mark.parametrize("storm", FULL + BELOW)
def test_a_fork_bomb_has_no_more_processes_than_its_limit(
    found: dict[str, Any], storm: str
) -> None:
    assert ALONE < found[storm]["most"] <= fork_bombs.LIMITS.processes + fork_bombs.BESIDES


@pytest.mark.parametrize("storm", FULL)
def test_the_limit_that_a_fork_bomb_reached_is_named(found: dict[str, Any], storm: str) -> None:
    assert "processes" in found[storm]["limits"]


@pytest.mark.parametrize("storm", FULL + BELOW)
def test_a_fork_bomb_has_an_outcome_in_time_and_its_session_goes_on(
    found: dict[str, Any], storm: str
) -> None:
    """At most five times as late as a loop in a quiet session beside it, and a second."""
    seen = found[storm]
    assert seen["late"] <= 5 * seen["quiet"] + 1
    assert seen["values"] == ["43", "42"]
