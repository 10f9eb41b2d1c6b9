"""`SessionBatch`: cells of many sessions, run side by side by one thread."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from repl_sandbox import Finished, Killed, Raised, Sandbox, Session, SessionBusy, TimedOut
from repl_sandbox.session.batch import SessionBatch
from tests.internals import batch_wait


@pytest.fixture
def sessions(sandbox: Sandbox) -> Iterator[list[Session]]:
    made = [sandbox.session() for _ in range(8)]
    yield made
    for session in made:
        session.close()


def test_outcomes_are_in_the_order_of_the_cells(sessions: list[Session]) -> None:
    batch = SessionBatch()
    for turn in range(5):
        cells = [(each, f"print({n})\n{n} * {turn}", None) for n, each in enumerate(sessions)]
        outcomes = batch.run(cells)
        for number, outcome in enumerate(outcomes):
            assert isinstance(outcome, Finished)
            assert (outcome.stdout, outcome.value) == (f"{number}\n", str(number * turn))


def test_a_timeout_may_be_longer_than_the_kernel_counts(sessions: list[Session]) -> None:
    outcomes = SessionBatch().run([(each, "1 + 1", 1e12) for each in sessions])
    assert [outcome.value for outcome in outcomes] == ["2"] * len(sessions)


def test_each_cell_has_its_own_outcome(sessions: list[Session]) -> None:
    codes = [
        "1",
        "1/0",
        "while True: pass",
        "import os\nos._exit(3)",
        "x = 2",
        "print('é' * 99999)",
    ]
    # A short timeout only for cells that have to time out.
    outcomes: list[Any] = SessionBatch().run(
        [
            (each, code, 0.2 if "while" in code else None)
            for each, code in zip(sessions, codes, strict=False)
        ]
    )
    kinds = [Finished, Raised, TimedOut, Killed, Finished, Finished]
    assert [type(each) for each in outcomes] == kinds
    assert outcomes[2].state == "kept" and outcomes[3].state == "rolled_back"
    assert len(outcomes[5].stdout) == 100_000
    again = SessionBatch().run([(each, "6 * 7", None) for each in sessions])
    assert [isinstance(each, Finished) and each.value for each in again] == ["42"] * 8


def test_a_cell_that_cannot_run_is_an_error_in_its_place(sessions: list[Session]) -> None:
    first, second, third, *_ = sessions
    second.close()
    cells: Any = [(first, "1", None), (first, "2", None), (second, "3", None), (third, 4, None)]
    outcomes = SessionBatch().run(cells)
    kinds = [type(each).__name__ for each in outcomes]
    assert kinds == ["Finished", "SessionBusy", "SessionClosed", "TypeError"]
    assert first.run("5").ok


def test_cells_run_at_the_same_time(sandbox: Sandbox) -> None:
    """Each waits until all have come to the same point, which one after the other none would."""
    meeting = threading.Barrier(6)

    def meet() -> int:
        return meeting.wait(60)

    sessions = [sandbox.session(host={"meet": meet}) for _ in range(6)]
    outcomes = SessionBatch().run([(each, "meet()", None) for each in sessions])
    assert sorted(str(getattr(each, "value", each)) for each in outcomes) == [*"012345"]
    for session in sessions:
        session.close()


def test_an_interrupted_batch_leaves_sessions_that_can_go_on(sandbox: Sandbox) -> None:
    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    caller, all_run = threading.get_ident(), threading.Barrier(8)

    def run() -> None:
        if all_run.wait(60) == 0:
            # While it waits. Elsewhere it may have received data that it has not stored yet.
            while sys._current_frames()[caller].f_code is not batch_wait():
                time.sleep(0.001)
            signal.pthread_kill(caller, signal.SIGALRM)

    sessions = [sandbox.session(host={"run": run}) for _ in range(8)]
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            SessionBatch().run(
                [(each, "x = 1\nrun()\nwhile True: pass", None) for each in sessions]
            )
    finally:
        signal.signal(signal.SIGALRM, before)
    assert [each.run("x").ok for each in sessions] == [True] * 8
    for session in sessions:
        session.close()


def test_output_between_cells_belongs_to_the_next(sessions: list[Session]) -> None:
    batch = SessionBatch()
    first, second = sessions[:2]
    late = "import os, threading\ngo = threading.Event()\n"
    late += "t = threading.Thread(target=lambda: (go.wait(), os.write(1, b'late ')))\nt.start()"
    batch.run([(first, late, None), (second, "1", None)])
    batch.run([(first, "threading.Timer(0, go.set).start()", None), (second, "1", None)])
    for _ in range(20):
        (outcome,) = batch.run([(second, "2", None)])
        assert isinstance(outcome, Finished) and outcome.stdout == ""
    (outcome,) = batch.run([(first, "t.join()\nprint('now')", None)])
    assert isinstance(outcome, Finished) and "now\n" in outcome.stdout


def test_a_session_in_another_call_is_busy(sandbox: Sandbox) -> None:
    entered, leave = threading.Event(), threading.Event()

    def wait() -> None:
        entered.set()
        leave.wait(60)

    with sandbox.session(host={"wait": wait}) as session:
        thread = threading.Thread(target=session.run, args=("wait()",))
        thread.start()
        assert entered.wait(60)
        (error,) = SessionBatch().run([(session, "1", None)])
        leave.set()
        thread.join()
        assert isinstance(error, SessionBusy)
