"""A child that a session's code forks comes to the end of the cell, and does not answer for it."""

from __future__ import annotations

import pytest

from repl_sandbox import Sandbox
from tests.sandbox.conftest import PATIENT

FORKS = ["os.fork", "ctypes.PyDLL(None).fork"]  # Python's own hooks are not run by the second


@pytest.mark.parametrize("recovery", ["snapshot", "restart"])
def test_a_child_does_not_answer(recovery: str) -> None:
    with Sandbox(recovery=recovery, limits=PATIENT) as sandbox, sandbox.session() as session:
        session.run("import os\nos.getpid = lambda: 1")  # the code's own names decide nothing
        for fork in FORKS * 2:
            outcome = session.run(
                f"import ctypes, os\npid = {fork}()\nif pid: os.waitpid(pid, 0)\npid > 0"
            )
            assert (outcome.value, outcome.state) == ("True", "kept")
            assert session.run("6 * 7").value == "42"
