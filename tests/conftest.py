"""What tests of several parts share: an interpreter for all users, and endpoints of models."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from tests.security.abuse.interpreters import open_to_all

if TYPE_CHECKING:
    from tests.rlm.endpoint import Answers, Endpoint


def pytest_collection_finish() -> None:
    """What is there by now, hundreds of thousands of objects of libraries, stays until the end.

    Each later collection would look through all of them, and some tests ask for many.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def open_python() -> str:
    """An interpreter that every user may run: without a view of its own, a session needs one."""
    if (path := open_to_all()) is None:
        pytest.skip("no Python of at least 3.11, or no checkout, that every user may read")
    return path


@pytest.fixture
def endpoint() -> Iterator[Callable[[Answers], Endpoint]]:
    """Starts fake endpoints of models; tests/rlm/endpoint.py says what they can do."""
    from tests.rlm.endpoint import Endpoint

    with ExitStack() as stack:
        yield lambda answers="ok": stack.enter_context(Endpoint(answers))
