"""A session of the sandbox that a file of tests has for small limits."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from repl_sandbox import Sandbox, Session


@pytest.fixture
def held(small: Sandbox) -> Iterator[Session]:
    with small.session() as session:
        yield session
