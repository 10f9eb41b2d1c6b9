"""A sandbox of each tier, and one with room for three branches."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from repl_sandbox import Sandbox
from tests.sandbox.session.branches.branching import LIMITS, TIERS


@pytest.fixture(scope="session", params=TIERS)
def sandbox(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    tier = request.param
    python = None if tier == "jailed" else request.getfixturevalue("open_python")
    with Sandbox(isolation=tier, python=python, limits=LIMITS) as sandbox:
        yield sandbox


@pytest.fixture(scope="session")
def jailed() -> Iterator[Sandbox]:
    with Sandbox(isolation="jailed", limits=LIMITS, branches=3) as sandbox:
        yield sandbox
