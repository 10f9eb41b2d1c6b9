"""Process-heavy sessions run in rotation with each other and with other sessions."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace

import psutil
import pytest

from repl_sandbox import Limits, Sandbox, Session, TimedOut
from repl_sandbox.host import fair_share, proc
from tests.internals import init_pid, session_share, watchdog_round
from tests.waiting import PATIENCE, eventually

# Twelve children that go on between cells, and one that has stopped itself.
CROWD = (
    "import os, signal\nfor number in range(13):\n    if not os.fork():\n"
    "        if not number: os.kill(os.getpid(), signal.SIGSTOP)\n"
    "        while True: pass\n"
)
BURN = "while True: pass"
# The maximum number of processes, all runnable.
STORM = (
    "import os\nwhile True:\n    try: pid = os.fork()\n    except OSError: break\n"
    "    if not pid:\n        while True: pass\n"
)


@pytest.fixture(params=["jailed", "confined"])
def sandbox(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, open_python: str
) -> Iterator[Sandbox]:
    # As on a machine with few processors.
    monkeypatch.setattr(fair_share, "AT_ONCE", 1)
    python = open_python if request.param == "confined" else None
    limits = Limits(timeout=PATIENCE, grace=PATIENCE)
    with Sandbox(isolation=request.param, python=python, limits=limits, fair_share=True) as made:
        yield made


def stopped(session: Session) -> int:
    """The number of its stopped processes."""
    found = 0
    for process in psutil.Process(init_pid(session)).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            found += process.status() == psutil.STATUS_STOPPED
    return found


def test_sessions_with_many_busy_processes_are_stopped_and_resumed_in_rotation(
    sandbox: Sandbox,
) -> None:
    with sandbox.session() as crowd, sandbox.session() as other:
        crowd.run(CROWD)

        def comes_to(number: int) -> bool:
            return other.run("1 + 1").value == "2" and stopped(crowd) == number

        eventually(lambda: comes_to(13))
        eventually(lambda: comes_to(1))
        eventually(lambda: comes_to(13))
        assert stopped(other) == 0
        assert crowd.run("6 * 7").value == "42"


def test_a_single_session_with_many_busy_processes_is_not_stopped(sandbox: Sandbox) -> None:
    with sandbox.session() as crowd:
        with sandbox.session() as other:
            crowd.run(CROWD)
            eventually(lambda: bool(other.run("1 + 1")) and stopped(crowd) == 13)

        def undisturbed() -> bool:
            """For half a second, in which it would have waited five times."""
            end = watchdog_round(sandbox) + 10
            while watchdog_round(sandbox) < end:
                if stopped(crowd) != 1:
                    return False
            return True

        eventually(undisturbed)


def test_a_stopped_session_still_has_its_timeout(
    sandbox: Sandbox,
) -> None:
    with sandbox.session() as one, sandbox.session() as two, ThreadPoolExecutor(2) as threads:
        for session in (one, two):
            session.run("x = 'kept'\n" + CROWD)
        runs = [threads.submit(session.run, BURN, timeout=3) for session in (one, two)]
        for session in (one, two, one):
            eventually(lambda session=session: stopped(session) > 8)
        for run, session in zip(runs, (one, two), strict=True):
            assert isinstance(run.result(), TimedOut)
            assert session.run("x").value == "'kept'"


def test_a_fork_bomb_is_throttled_in_every_sandbox_except_its_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fair_share, "STORM", 8)
    with (
        Sandbox(limits=Limits(timeout=PATIENCE, processes=16)) as made,
        made.session() as session,
        made.session() as other,
    ):
        session.run(STORM)
        eventually(lambda: bool(other.run("1 + 1")) and stopped(session) > 8)
        assert session.run("6 * 7").value == "42"
        assert stopped(other) == 0
        eventually(lambda: stopped(session) == 0)  # alone, in the end


def test_a_fork_bomb_has_its_time_slice() -> None:
    rounds = range(3 * fair_share.SELDOM)
    assert [each for each in rounds if fair_share.fork_bomb_turn(each, 3)] == [
        0,
        fair_share.SELDOM,
        2 * fair_share.SELDOM,
    ]
    assert set().union(*(fair_share.fork_bomb_turn(each, 3) for each in rounds)) == {0, 1, 2}
    assert fair_share.fork_bomb_turn(0, 0) == set()


def test_an_ended_session_has_no_time_slice(sandbox: Sandbox) -> None:
    """Otherwise a session that is alone would wait for its slot."""
    with sandbox.session() as one:
        one.run(CROWD)
        with sandbox.session() as two:
            two.run(CROWD)
            eventually(lambda: stopped(one) > 8)
            eventually(lambda: stopped(two) > 8)
            share = session_share(sandbox, two)
        assert not share.throttled
        assert not share.is_stopped


def test_every_waiting_session_has_a_time_slice() -> None:
    rounds = range(400)
    most = min(20, fair_share.AT_ONCE)
    assert set().union(*(fair_share.turn(each, 20, others=True) for each in rounds)) == set(
        range(20)
    )
    assert all(len(fair_share.turn(each, 20, others=False)) == most for each in rounds)
    assert fair_share.turn(7, 1, others=False) == {0}


def test_a_few_busy_sessions_all_run_while_there_are_processors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fair_share, "AT_ONCE", 4)
    assert all(fair_share.turn(each, 3, others=True) == {0, 1, 2} for each in range(10))
    assert sum(not fair_share.turn(each, 4, others=True) for each in range(10)) == 5


def test_no_signal_goes_to_a_later_process_of_the_same_number() -> None:
    with subprocess.Popen(["sleep", "600"]) as process:
        try:
            shown = psutil.Process(process.pid)
            (now,) = proc.read_all([process.pid])
            running = replace(now, state=b"R")
            crowd = fair_share.Throttle()
            crowd.stop([replace(running, began=now.began - 1)])
            assert shown.status() != psutil.STATUS_STOPPED
            crowd.stop([running])
            eventually(lambda: shown.status() == psutil.STATUS_STOPPED)
            crowd.resume_all()
            eventually(lambda: shown.status() != psutil.STATUS_STOPPED)
        finally:
            process.kill()
