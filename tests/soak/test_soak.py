"""A short soak, with all the checks of the long one: `make soak`."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import pytest

from repl_sandbox import Sandbox
from tests.soak.fork_bomb import storm
from tests.soak.model import Model
from tests.soak.soak import TIERS, Plan, soak

# Delays are measured by `make soak`, on a machine of its own.
PLAN = Plan(tier="jailed", seconds=2, sessions=8, seed="the same each time", least=20, storms=False)


@pytest.mark.parametrize("seconds", [2, pytest.param(15, marks=pytest.mark.slow)])
@pytest.mark.parametrize("tier", TIERS)
def test_sessions_lose_only_their_workers(
    tier: Literal["jailed", "confined"], seconds: int, request: pytest.FixtureRequest
) -> None:
    python = None if tier == "jailed" else request.getfixturevalue("open_python")

    report = soak(replace(PLAN, tier=tier, python=python, seconds=seconds))

    assert report.faults == []
    assert report.figures.kills
    assert report.figures.steps.total() > report.figures.steps["roll_back"] > 0


def test_a_soak_detects_losses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that forgets additions of cells looks like sessions with values from elsewhere."""
    monkeypatch.setattr("tests.soak.model.State.add", lambda self, number: None)

    report = soak(replace(PLAN, seconds=3, sessions=2))

    assert any("items" in fault for fault in report.faults), report.faults


def test_the_model_knows_how_far_a_session_can_roll_back() -> None:
    model = Model(history=1)
    model.cell().variables["x"] = 1
    model.cell().variables["x"] = 2
    model.cell().variables["x"] = 3

    assert model.can_go_back(1) and not model.can_go_back(2)
    model.go_back(1)
    assert model.state.variables == {"x": 2}
    assert not model.can_go_back(1)


@pytest.mark.parametrize("tier", TIERS)
def test_a_fork_bomb_has_its_row(tier: str, request: pytest.FixtureRequest) -> None:
    python = None if tier == "jailed" else request.getfixturevalue("open_python")
    with Sandbox(isolation=tier, python=python) as sandbox:
        seen = storm(sandbox)

    assert seen.named
    assert seen.told()["outcome"] in ("TimedOut", "Killed")
    assert replace(seen, late=99.0, beside=99.0, named=False).faults()[2:]
