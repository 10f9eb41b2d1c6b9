"""One sandbox for all tests of the engine, and a fresh session for each."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from repl_sandbox import AsyncSandbox, Limits, Outcome, Sandbox, Session

# Seconds that a cell has, and that it has once it is interrupted, where neither is what is tested:
# a machine under load may give a process no processor for many of them.
PATIENT = Limits(timeout=60, grace=60)


@pytest.fixture(scope="session")
def sandbox() -> Iterator[Sandbox]:
    """Ordinary behaviour is tested in one tier; conformance and security own the others.

    A file whose subject differs by tier has `sandbox` return `in_each_tier`.
    """
    with Sandbox(isolation="jailed", limits=PATIENT) as sandbox:
        yield sandbox


@pytest.fixture(scope="session", params=["jailed", "confined"])
def in_each_tier(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    python = None if request.param == "jailed" else request.getfixturevalue("open_python")
    with Sandbox(isolation=request.param, python=python, limits=PATIENT) as sandbox:
        yield sandbox


@pytest.fixture
def session(sandbox: Sandbox) -> Iterator[Session]:
    with sandbox.session() as session:
        yield session


@pytest.fixture(scope="session", params=["jailed", "confined"])
def recovering(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    """A sandbox of either tier, for what must not depend on how a session is held."""
    python = None if request.param == "jailed" else request.getfixturevalue("open_python")
    limits = Limits(timeout=60, grace=0.1, memory="300MiB", processes=30, open_files=64)
    with Sandbox(isolation=request.param, python=python, limits=limits, history=3) as sandbox:
        yield sandbox


@pytest.fixture
def copied(recovering: Sandbox) -> Iterator[Session]:
    """A session whose state can be gone back to, three cells far."""
    with recovering.session() as session:
        yield session


# Ignores interrupts once it has printed its line: no signal check lies between that and the loop,
# and an interrupt before the check is caught.
STUBBORN = """
while True:
    try:
        print("so far")
        sum(range(10**13))
    except BaseException:
        pass
"""


class Clock:
    """The clock of the host's side of sessions, which a test can put forward."""

    def __init__(self) -> None:
        self._ahead = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self._ahead

    def jump(self, seconds: float) -> None:
        """Advance the clock."""
        self._ahead += seconds

    def strike(self, stream: str, text: str) -> None:
        """As `on_output`: a cell times out once it has printed a line."""
        if "\n" in text:
            self.jump(1000)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """For cells that are to run out of time, but not before they have come to a certain point.

    The time that they take to get there depends on the machine.
    """
    clock = Clock()
    for name, module in list(sys.modules.items()):
        if name.startswith("repl_sandbox.session."):
            for own in ("monotonic", "_monotonic"):
                if getattr(module, own, None) is time.monotonic:
                    monkeypatch.setattr(module, own, clock)
    return clock


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
