"""One real sandbox for all runs of these tests."""

import pytest

from repl_env.rlm import RLM
from repl_sandbox import Limits, Sandbox


@pytest.fixture(scope="session")
def sandbox():
    with Sandbox(limits=Limits(memory="512MiB", timeout=20.0, grace=0.3)) as sandbox:
        yield sandbox


@pytest.fixture
def rlm(sandbox):
    """Makes an `RLM` on the one sandbox."""

    def make(model, **arguments):
        return RLM(model, sandbox=sandbox, **arguments)

    return make
