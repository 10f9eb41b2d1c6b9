"""Two sessions side by side: neither reaches, fills up or starves the other."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from repl_sandbox.jail.landlock import SCOPES, kernel_abi
from tests.security.attacks import neighbours

PROGRAM = Path(__file__).parent / "neighbours.py"
# What tells that all was taken: an error in the session, or the reason of its end.
FULL = {
    "files": "No space left|workspace",
    "processes": "temporarily unavailable|processes",
    "memory": "memory",
    "processors": "all busy",
}
LOOKS = [f"{tier}-{who}" for tier in ("jailed", "confined") for who in ("suite", "ordinary")]


@pytest.fixture(scope="module", params=LOOKS)
def found(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Return the results of two neighbours of a tier, for each user who starts their sandbox."""
    tier, who = request.param.split("-")
    if tier == "confined" and not kernel_abi():
        pytest.skip("this kernel has no Landlock")
    if tier == "confined" and who == "ordinary" and kernel_abi() < SCOPES:
        pytest.skip("neighbours of one user signal each other before ABI 6, and the layer says so")
    if who == "suite":
        python = None if tier == "jailed" else request.getfixturevalue("open_python")
        return neighbours.look(tier, python)
    user: Callable[[str], Any] = request.getfixturevalue("user")
    return as_user(user, tier)


def as_user(user: Callable[[str], Any], tier: str, *, fill: bool = True) -> dict[str, Any]:
    source = PROGRAM.read_text(encoding="utf-8")
    result: dict[str, Any] = user(f"{source}\nprint(json.dumps(look({tier!r}, None, fill={fill})))")
    return result


def test_the_tier_is_the_one_that_was_asked_for(
    found: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    assert found["tier"] in request.node.name


def test_in_tier_process_the_attempts_succeed(user: Callable[[str], Any]) -> None:
    """They can; otherwise their failure elsewhere would prove nothing."""
    found = as_user(user, "process", fill=False)
    done = {name for name, outcome in found["attempts"].items() if outcome == "done"}
    assert done >= {
        "signal to worker",
        "signal by pidfd to child",
        "memory of worker",
        "environ of worker",
        "cwd/secret.txt of worker",
        "descriptors of worker",
        "priority of child",
        "System V shared memory",
        "abstract socket",
    }
    assert any(name.startswith("read /") for name in done)
    assert found["kept"]["signals"]
    assert not found["kept"]["files"]


def test_a_neighbour_cannot_be_read_signalled_or_changed(found: dict[str, Any]) -> None:
    done = [name for name, outcome in found["attempts"].items() if outcome == "done"]
    assert done == []
    assert len(found["attempts"]) > 60


@pytest.mark.parametrize("filled", neighbours.FILLERS)
def test_resources_used_by_a_neighbour_are_not_missing_for_others(
    found: dict[str, Any], filled: str
) -> None:
    """Files, processes, memory; and whose neighbour spins on every processor still gets to work.

    No share of CPU time is measured: none is promised (SECURITY.md).
    """
    assert re.search(FULL[filled], found["full"][filled])
    assert found["works"][filled] == "None"


def test_a_session_is_unchanged_by_its_neighbour(found: dict[str, Any]) -> None:
    own = os.getpriority(os.PRIO_PROCESS, 0)
    assert found["kept"] == {"files": True, "signals": [], "child": True, "priority": own}
