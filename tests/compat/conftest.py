"""Servers that the tests of this folder share: this project's, and OpenEnv's own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from repl_server.auth import new_key
from repl_server.settings import Settings
from tests.compat.environments import HERE, NEWEST, program, served
from tests.server.conftest import serving


@pytest.fixture(scope="session")
def our_server() -> Iterator[str]:
    """A server of this project without options."""
    with serving(Settings(port=0)) as server:
        yield server.url


@pytest.fixture(scope="session")
def locked_server() -> Iterator[tuple[str, str]]:
    """A server of this project that requires keys, and a key."""
    key, line = new_key("alice")
    with serving(Settings(port=0, hashed_keys=(line,))) as server:
        yield server.url, key


@pytest.fixture(scope="session")
def their_server() -> Iterator[str]:
    """OpenEnv's server, with the adapter's environment in it."""
    with served(program(NEWEST, "python"), str(HERE / "hosting.py")) as url:
        yield url
