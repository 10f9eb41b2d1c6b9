"""Ready sessions: what happens when one cannot be made."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from repl_sandbox.errors import SandboxError
from repl_sandbox.pool import Pool


class Source:
    """Makes stand-ins for sessions, or fails while it is told to."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.failed = threading.Event()
        self.made = threading.Semaphore(0)

    def __call__(self) -> Any:
        if self.error is not None:
            self.failed.set()
            raise self.error
        self.made.release()
        return object()


@pytest.mark.parametrize("error", [SandboxError("no"), OSError(24, "Too many open files")])
def test_a_pool_that_could_not_be_filled_is_filled_again(error: Exception) -> None:
    source = Source()
    pool = Pool(1, source)
    assert source.made.acquire(timeout=5)
    source.error = error
    assert pool.take() is not None
    assert source.failed.wait(5)

    source.error = None
    for _ in range(100):
        assert pool.take() is None  # none is ready: the caller makes its own
        if source.made.acquire(timeout=0.1):
            break
    assert len(pool.close()) == 1


def test_a_pool_that_cannot_be_filled_can_be_closed() -> None:
    source = Source()
    pool = Pool(1, source)
    source.error = SandboxError("no")
    pool.take()
    assert source.failed.wait(5)
    assert pool.close() == []
