"""A client that goes away amid a step is nobody's fault."""

from __future__ import annotations

import logging

import pytest

from tests.server.conftest import peer
from tests.waiting import eventually


def test_a_client_that_leaves_amid_a_step_ends_its_session_without_a_fault(
    server, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "repl_server")
    before = server.host.sessions
    with peer(server) as client:
        client.reset()
        (session,) = (each for each in server.host.sessions if each not in before)
        eventually(lambda: not session.busy)
        client.send("step", {"code": "import time; time.sleep(600)"})
        eventually(lambda: session.busy)

    eventually(lambda: session not in server.host.sessions)
    assert [each for each in caplog.records if each.levelno >= logging.WARNING] == []
