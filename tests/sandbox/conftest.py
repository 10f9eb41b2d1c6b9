"""One sandbox for all tests of the engine, and a fresh session for each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from repl_sandbox import Limits, Sandbox, Session


@pytest.fixture(scope="session", params=["jailed", "confined"])
def sandbox(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    python = None if request.param == "jailed" else request.getfixturevalue("open_python")
    with Sandbox(isolation=request.param, python=python, limits=Limits(timeout=20)) as sandbox:
        yield sandbox


@pytest.fixture
def session(sandbox: Sandbox) -> Iterator[Session]:
    with sandbox.session() as session:
        yield session
