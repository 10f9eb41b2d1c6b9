"""One real sandbox for all runs of these tests."""

import pytest

from repl_env.rlm import RLM
from repl_sandbox import Sandbox
from tests.limits import PATIENT


@pytest.fixture(scope="session")
def sandbox():
    with Sandbox(limits=PATIENT) as sandbox:
        yield sandbox


@pytest.fixture
def rlm(sandbox):
    """Makes an `RLM` on the one sandbox."""

    def make(model, **arguments):
        return RLM(model, sandbox=sandbox, **arguments)

    return make
