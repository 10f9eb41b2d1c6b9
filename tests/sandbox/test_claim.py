"""A child that a session's code forks comes to the end of the cell, and does not answer for it."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable

import pytest

from repl_sandbox import Sandbox, Session
from repl_sandbox.worker import claim
from repl_sandbox.worker.claim import Claim
from tests.sandbox.conftest import PATIENT

_libc = ctypes.PyDLL(None)
FORKS = [os.fork, _libc.fork]  # Python's own hooks are not run by the second


@pytest.fixture(params=["a page", "a number"])
def held(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Claim:
    if request.param == "a number":
        monkeypatch.setattr(claim, "_MADV_WIPEONFORK", -1)  # which no kernel knows
    return Claim()


@pytest.mark.parametrize("fork", FORKS, ids=["os.fork", "fork"])
def test_it_is_the_processs_that_took_it(held: Claim, fork: Callable[[], int]) -> None:
    assert not held.page[0]
    held.take()
    assert held.page[0]
    pid = fork()
    if pid == 0:
        before = held.page[0]
        held.take()
        os._exit(0 if held.page[0] and not before else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert held.page[0]


def _forks(session: Session) -> None:
    for fork in ("os.fork", "ctypes.PyDLL(None).fork"):
        outcome = session.run(
            f"import ctypes, os\npid = {fork}()\nif pid: os.waitpid(pid, 0)\npid > 0"
        )
        assert (outcome.value, outcome.state) == ("True", "kept")
        assert session.run("6 * 7").value == "42"


@pytest.mark.parametrize("recovery", ["snapshot", "restart"])
def test_a_child_does_not_answer(recovery: str) -> None:
    with Sandbox(recovery=recovery, limits=PATIENT) as sandbox, sandbox.session() as session:
        _forks(session)
        for number in range(40):  # so many cells that come at once go by pipes, where that may be
            session.run(f"x = {number}")
        assert (session._core.links.shortcut is not None) == (recovery == "restart")
        _forks(session)
