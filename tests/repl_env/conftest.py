"""One real sandbox for all tests of episodes, and environments on it."""

import pytest

from repl_env import LocalREPLEnv
from repl_sandbox import Limits, Sandbox


@pytest.fixture(scope="session")
def sandbox():
    with Sandbox(limits=Limits(memory="512MiB", timeout=20.0, grace=0.3)) as sandbox:
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
