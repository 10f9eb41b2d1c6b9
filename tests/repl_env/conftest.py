"""One real sandbox for all tests, environments and runs on it, and timeouts for clients."""

from __future__ import annotations

import asyncio

import pytest

from repl_env import LocalREPLEnv
from repl_env.client import connection, session
from repl_env.rlm import RLM
from repl_sandbox import Sandbox
from tests.limits import PATIENT
from tests.repl_env.environment_internals import set_close_timeout

PROXIES = ("http_proxy", "https_proxy", "ws_proxy", "wss_proxy", "socks_proxy", "all_proxy")


@pytest.fixture(scope="session")
def sandbox():
    with Sandbox(limits=PATIENT) as sandbox:
        yield sandbox


@pytest.fixture
def make(sandbox):
    """Environments with any arguments on the one sandbox; closed after the test."""
    made = []

    def new(**arguments):
        made.append(LocalREPLEnv(sandbox=sandbox, **arguments))
        return made[-1]

    yield new
    for env in made:
        env.close()


@pytest.fixture
def env(make):
    return make()


@pytest.fixture
def rlm(sandbox):
    """Makes an `RLM` on the one sandbox."""

    def make(model, **arguments):
        return RLM(model, sandbox=sandbox, **arguments)

    return make


@pytest.fixture(autouse=True)
def patient_clients(monkeypatch):
    """A client that closes a step, or its session, waits for the server to confirm."""
    monkeypatch.setattr(session, "ABANDON_TIMEOUT_S", 60.0)
    monkeypatch.setattr(connection, "CLOSE_TIMEOUT_S", 60.0)
    set_close_timeout(monkeypatch, 60.0)


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch):
    """A proxy is what a test says."""
    for name in (*PROXIES, "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


class Clock:
    """The clock of the test's event loop: that of the machine, and how far it was put forward."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop, self._real, self._ahead = loop, loop.time, 0.0

    def time(self) -> float:
        """For the loop."""
        return self._real() + self._ahead

    def forward(self, seconds: float) -> None:
        """Run timers that are due within so many seconds. Called in the loop."""
        self._ahead += seconds

    async def forward_from_afar(self, seconds: float) -> None:
        """The same from another loop, that of a server; returns when it is done."""

        async def forward() -> None:
            self.forward(seconds)

        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(forward(), self._loop))


@pytest.fixture
async def clock(monkeypatch):
    """Has hours pass for a client at once, and none if the machine stands still."""
    made = Clock(loop := asyncio.get_running_loop())
    monkeypatch.setattr(loop, "time", made.time)
    return made
