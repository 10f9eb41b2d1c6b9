"""An interpreter for sessions that have no view of their own."""

from __future__ import annotations

import pytest

from tests.security.abuse.interpreters import open_to_all


@pytest.fixture(scope="session")
def open_python() -> str:
    """An interpreter that every user may run: without a view of its own, a session needs one."""
    if (path := open_to_all()) is None:
        pytest.skip("no Python of at least 3.11, or no checkout, that every user may read")
    return path
