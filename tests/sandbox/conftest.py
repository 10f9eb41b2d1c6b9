"""One sandbox for all tests of the engine, and a fresh session for each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from repl_sandbox import AsyncSandbox, Limits, Outcome, Sandbox, Session


@pytest.fixture(scope="session", params=["jailed", "confined"])
def sandbox(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    python = None if request.param == "jailed" else request.getfixturevalue("open_python")
    with Sandbox(isolation=request.param, python=python, limits=Limits(timeout=20)) as sandbox:
        yield sandbox


@pytest.fixture
def session(sandbox: Sandbox) -> Iterator[Session]:
    with sandbox.session() as session:
        yield session


@pytest.fixture(scope="session", params=["jailed", "confined", "process"])
def recovering(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    """A sandbox of each tier, for what must not depend on how a session is held."""
    python = None if request.param == "jailed" else request.getfixturevalue("open_python")
    limits = Limits(timeout=20, grace=0.1, memory="300MiB", processes=30, open_files=64)
    with Sandbox(isolation=request.param, python=python, limits=limits, history=3) as sandbox:
        yield sandbox


@pytest.fixture
def copied(recovering: Sandbox) -> Iterator[Session]:
    """A session whose state can be gone back to, three cells far."""
    with recovering.session() as session:
        yield session


@pytest.fixture(params=["sync", "async"])
def cells(request: pytest.FixtureRequest, sandbox: Sandbox) -> Callable[..., list[Outcome]]:
    """`cells(host, *codes)`: what these came to in one session, driven in either way."""

    def plain(host: dict[str, Any], *codes: str, **arguments: Any) -> list[Outcome]:
        with sandbox.session(host=host, **arguments) as session:
            return [session.run(code) for code in codes]

    async def awaited(host: dict[str, Any], *codes: str, **arguments: Any) -> list[Outcome]:
        async with AsyncSandbox.of(sandbox).session(host=host, **arguments) as session:
            return [await session.run(code) for code in codes]

    if request.param == "sync":
        return plain
    return lambda *args, **arguments: asyncio.run(awaited(*args, **arguments))
