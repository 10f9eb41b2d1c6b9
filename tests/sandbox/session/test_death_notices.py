"""The cause of a worker's death is reported correctly, however late init sends it."""

from __future__ import annotations

import threading

import psutil
import pytest

from repl_sandbox import Killed, Limits, Sandbox, SandboxError, Session
from repl_sandbox.session import recovery
from repl_sandbox.session.batch import SessionBatch
from tests.internals import init_pid

# Seconds: after which the host has a silent worker killed, and for which init says nothing.
PATIENCE, SILENCE = 0.02, 0.3


@pytest.fixture
def sandbox(in_each_tier: Sandbox) -> Sandbox:
    return in_each_tier


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        ("os._exit(1)", "exit"),
        ("ctypes.string_at(0)", "signal"),
        ("os.closerange(3, 4096)\nwhile True: pass", "protocol"),
    ],
    ids=["exit", "crash", "hung up"],
)
def test_a_late_death_notice_is_reported_correctly(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, end: str, reason: str
) -> None:
    """A machine that is overloaded may not run init for seconds."""
    monkeypatch.setattr(recovery, "NOTICE_TIMEOUT", PATIENCE)
    goes_on: list[threading.Timer] = []

    def hold_init() -> None:
        init = psutil.Process(init_pid(session))
        init.suspend()
        goes_on.append(threading.Timer(SILENCE, init.resume))
        goes_on[0].start()

    with sandbox.session(host={"hold_init": hold_init}, limits=Limits(timeout=60)) as session:
        session.run("import ctypes, os\nx = 1")
        outcome = session.run(f"hold_init()\n{end}")
        goes_on[0].join()

        assert isinstance(outcome, Killed)
        assert (outcome.reason, outcome.state) == (reason, "rolled_back")
        assert session.run("x").value == "1"


@pytest.mark.parametrize("batch", [False, True], ids=["one session", "batch"])
def test_a_cell_ends_though_init_is_stopped(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, batch: bool
) -> None:
    """Neither the interrupt of the cell nor the kill of its worker is carried out."""
    monkeypatch.setattr(recovery, "REVIVE_TIMEOUT", SILENCE)
    with sandbox.session(limits=Limits(timeout=0.2, grace=0.1)) as session:
        init = psutil.Process(init_pid(session))
        init.suspend()
        run = _run_as_batch if batch else Session.run
        with pytest.raises(SandboxError, match="init does not answer"):
            run(session, "while True: pass")
        assert init.status() == psutil.STATUS_STOPPED
        init.resume()  # the session closes at once


def _run_as_batch(session: Session, code: str) -> None:
    (result,) = SessionBatch().run([(session, code, None)])
    if isinstance(result, Exception):
        raise result
