"""A client that goes away amid a step is nobody's fault."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import pytest

from tests.server.conftest import peer


def wait_until(true: Callable[[], object]) -> None:
    """Look until it is so; AssertionError if it never is."""
    end = time.monotonic() + 20
    while not true():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_a_client_that_leaves_amid_a_step_ends_its_session_without_a_fault(
    server, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "repl_server")
    with peer(server) as client:
        client.reset()
        (session,) = server.host.sessions
        wait_until(lambda: not session.busy)
        client.send("step", {"code": "import time; time.sleep(600)"})
        wait_until(lambda: session.busy)

    wait_until(lambda: not server.host.sessions)
    assert [each for each in caplog.records if each.levelno >= logging.WARNING] == []
