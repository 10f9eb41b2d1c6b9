"""Cells that follow one another without a pause: each has its own output, calls and result."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator

import pytest

from repl_sandbox import Limits, Raised, Sandbox, Session
from tests.sandbox.conftest import PATIENT

TIMES = 40


@pytest.fixture(scope="module", params=["restart", "snapshot"])
def sandbox(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    with Sandbox(limits=PATIENT, recovery=request.param) as sandbox:
        yield sandbox


@pytest.fixture
def session(sandbox: Sandbox) -> Iterator[Session]:
    limits = Limits(timeout=60, grace=0.3)
    with sandbox.session(host={"double": lambda x: 2 * x}, limits=limits) as session:
        step(session)
        yield session


def step(session: Session) -> None:
    for number in range(TIMES):
        assert session.run(f"x = {number}\nx").value == str(number)


def test_output_belongs_to_the_cell_that_wrote_it(session: Session) -> None:
    for number in range(100):
        outcome = session.run(f"print({number})" if number % 2 else "pass")
        assert outcome.stdout == (f"{number}\n" if number % 2 else "")


@pytest.mark.parametrize("size", [4_066, 4_096, 100_000, 3 << 20])
def test_a_long_cell_and_a_long_value_arrive_complete(session: Session, size: int) -> None:
    for _ in range(3):
        text = "é" * (size // 2)
        assert session.run(f"y = '{text}'\nlen(y)").value == str(size // 2)
        shown = session.run(f"'a' * {size}").value
        assert shown is not None and shown[:100] == "'" + "a" * 99
        assert len(shown) == size + 2 or size > 1 << 20
        assert session.run("x").value == str(TIMES - 1)


def test_requests_are_answered_between_cells(session: Session) -> None:
    for number in range(10):
        session.set("small", number)
        assert session.run("small").value == str(number)
        assert session.get("x") == TIMES - 1
        session.set("large", "é" * 200_000)
        assert session.run("len(large)").value == "200000"


def test_threads_that_call_the_host_between_cells(session: Session) -> None:
    """One of the threads reads the worker's socket for all of them while it waits for a reply."""
    session.run(
        "import threading\n"
        "calls, stop = [0], threading.Event()\n"
        "def call():\n"
        "    while not stop.is_set():\n"
        "        try:\n"
        "            assert double(4) == 8\n"
        "            calls[0] += 1\n"
        "        except HostCallError:\n"  # the cell has ended
        "            pass\n"
        "threads = [threading.Thread(target=call) for _ in range(3)]\n"
        "for thread in threads: thread.start()"
    )
    for number in range(20):
        assert session.run(f"{number} + 1").value == str(number + 1)
        assert session.get("x") == TIMES - 1
        session.run("while calls[0] < 3: pass\ncalls[0] = 0")
    session.run("stop.set()\nfor thread in threads: thread.join()")
    step(session)
    assert session.run("double(21)").value == "42"


def test_a_partly_read_reply_at_the_end_of_a_cell_is_read_completely(sandbox: Sandbox) -> None:
    numbers = random.Random(1)
    timers: list[threading.Timer] = []

    def big() -> str:
        if timers:
            timers.pop().start()  # the cell runs by now, so there is one to interrupt
        return "a" * 170_000

    with sandbox.session(host={"big": big}) as session:
        step(session)
        for _ in range(30):
            timer = threading.Timer(numbers.uniform(0, 0.01), session.interrupt)
            timers.append(timer)
            outcome = session.run("while True: big()")
            timer.join()
            assert isinstance(outcome, Raised) and outcome.state == "kept"
            assert session.run("x", timeout=20).value == str(TIMES - 1)
