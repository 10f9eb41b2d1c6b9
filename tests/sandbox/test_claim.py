"""A child that a session's code forks comes to the end of the cell, and does not answer for it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from repl_sandbox import Sandbox, Session
from tests.sandbox.conftest import PATIENT

FORKS = ["os.fork", "ctypes.PyDLL(None).fork"]  # Python's own hooks are not run by the second
# In a process of one thread: who forks without the hooks has a child without the other threads.
CLAIMS = """
import ctypes, os
from repl_sandbox.worker import claim
claim._MADV_WIPEONFORK = {advice}
held = claim.Claim()
assert not held.page[0]
held.take()
assert held.page[0]
pid = {fork}()
if pid == 0:
    before = held.page[0]
    held.take()
    os._exit(0 if held.page[0] and not before else 1)
assert os.waitpid(pid, 0)[1] == 0
assert held.page[0]
print(type(held.page).__name__)
"""


@pytest.mark.parametrize("fork", FORKS)
@pytest.mark.parametrize(
    ("advice", "kind"), [("claim._MADV_WIPEONFORK", "mmap"), ("-1", "_Number")]
)  # no kernel knows -1
def test_it_is_the_processs_that_took_it(fork: str, advice: str, kind: str) -> None:
    command = [sys.executable, "-c", CLAIMS.format(fork=fork, advice=advice)]
    ran = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert (ran.stdout, ran.stderr) == (f"{kind}\n", "")


def _forks(session: Session) -> None:
    for fork in FORKS:
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
