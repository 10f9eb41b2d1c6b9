"""Calls of the host end with the cell that made them, and with its session."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Any

import pytest

from repl_sandbox import AsyncSandbox, HostFunction, Limits, Outcome, Sandbox, TimedOut

Cells = Callable[..., list[Outcome]]
SECONDS = 60


class Hanging:
    """Makes a coroutine function that never returns, and records how it ended."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.cancelled = threading.Event()

    def function(self) -> Callable[..., Any]:
        async def hang(*args: Any) -> None:
            self.begun.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.cancelled.set()
                raise

        return hang


IN_THREAD = (
    "import threading, time\n"
    "said = []\n"
    "def call():\n"
    "    try: hang()\n"
    "    except HostCallError as error: said.append(error.type)\n"
    "thread = threading.Thread(target=call)\n"
    "thread.start()\n"
)


def test_a_call_that_outlives_its_time_is_cancelled(cells: Cells) -> None:
    hanging = Hanging()
    limits = Limits(host_timeout=0.2)
    outcomes = cells({"hang": hanging.function()}, "x = 1", "hang()", "x", limits=limits)
    assert isinstance(outcomes[1], TimedOut)
    assert hanging.cancelled.wait(SECONDS)
    assert outcomes[2].value == "1"


def test_a_call_of_a_thread_that_outlives_its_cell_is_cancelled(cells: Cells) -> None:
    hanging = Hanging()

    async def begun() -> bool:
        return hanging.begun.is_set()

    host = {"hang": hanging.function(), "begun": begun}
    outcomes = cells(host, IN_THREAD + "while not begun(): pass", "thread.join(); said")
    assert outcomes[0].ok
    assert hanging.cancelled.wait(SECONDS)
    assert outcomes[1].value == "['Cancelled']"


def test_a_call_of_a_cell_that_is_killed_is_cancelled(cells: Cells) -> None:
    hanging = Hanging()

    async def begun() -> bool:
        return hanging.begun.is_set()

    host = {"hang": hanging.function(), "begun": begun}
    code = IN_THREAD + "while not begun(): pass\nimport os; os._exit(1)"
    outcomes = cells(host, "x = 1", code, "x")
    assert outcomes[1].state == "rolled_back"
    assert hanging.cancelled.wait(SECONDS)
    assert outcomes[2].value == "1"


def test_a_call_of_a_session_that_is_closed_is_cancelled(sandbox: Sandbox) -> None:
    hanging = Hanging()
    session = sandbox.session(host={"hang": hanging.function()})

    def run() -> None:
        with contextlib.suppress(Exception):
            session.run("hang()")

    thread = threading.Thread(target=run)
    thread.start()
    assert hanging.begun.wait(SECONDS)
    session.close()
    assert hanging.cancelled.wait(SECONDS)
    thread.join(SECONDS)
    assert not thread.is_alive()


async def test_a_call_of_an_asynchronous_session_that_is_closed_is_cancelled(
    sandbox: Sandbox,
) -> None:
    begun, cancelled = asyncio.Event(), asyncio.Event()

    async def hang() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    session = await AsyncSandbox.of(sandbox).session(host={"hang": hang})
    running = asyncio.ensure_future(session.run("hang()"))
    await asyncio.wait_for(begun.wait(), SECONDS)
    await session.close()
    await asyncio.wait_for(cancelled.wait(), SECONDS)
    await asyncio.gather(running, return_exceptions=True)


async def test_a_cancelled_run_cancels_its_calls(sandbox: Sandbox) -> None:
    begun, cancelled = asyncio.Event(), asyncio.Event()

    async def hang() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async with AsyncSandbox.of(sandbox).session(host={"hang": hang}) as session:
        running = asyncio.ensure_future(session.run("hang()"))
        await asyncio.wait_for(begun.wait(), SECONDS)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await asyncio.wait_for(cancelled.wait(), SECONDS)
        assert (await session.run("1 + 1")).value == "2"


def test_the_answer_of_a_cancelled_call_reaches_no_later_cell(cells: Cells) -> None:
    """The stubborn one returns while the next cell has a call open, under the same number."""
    first, second, answered = threading.Event(), threading.Event(), threading.Event()

    async def stubborn(number: int) -> str:
        if number == 1:
            first.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                await asyncio.to_thread(second.wait, SECONDS)
            answered.set()
        else:
            second.set()
            await asyncio.to_thread(answered.wait, SECONDS)
            await asyncio.sleep(0.1)  # time for the other to be taken for this one's reply
        return f"reply to {number}"

    async def begun() -> bool:
        return first.is_set()

    # Numbers restart with a worker. The number of a thread's call among the first ones is not
    # deterministic.
    begin = "import os, threading, time\nthreading.Thread(target=stubborn, args=(1,)).start()\n"
    again = (
        "from concurrent.futures import ThreadPoolExecutor\n"
        "with ThreadPoolExecutor(3) as pool: found = list(pool.map(stubborn, (2, 2, 2)))\nfound"
    )
    host = {"stubborn": stubborn, "begun": begun}
    outcomes = cells(host, begin + "while not begun(): time.sleep(0.01)\nos._exit(1)", again)
    assert outcomes[0].state in ("rolled_back", "restarted")
    assert outcomes[1].value == str(["reply to 2"] * 3)


def test_a_function_that_cancels_itself_is_an_error(cells: Cells) -> None:
    async def cancelled() -> None:
        raise asyncio.CancelledError

    limits = Limits(host_timeout=SECONDS)
    (outcome,) = cells({"cancelled": cancelled}, "cancelled()", limits=limits)
    assert outcome.error is not None
    assert outcome.error.message == "Cancelled: the host has cancelled this call"


def test_blocking_functions_run_to_their_end_without_a_reply(cells: Cells) -> None:
    release, ended = threading.Event(), threading.Event()

    def slow() -> str:
        release.wait(SECONDS)
        ended.set()
        return "late"

    limits = Limits(host_timeout=0.2)
    outcomes = cells({"slow": slow, "quick": lambda: "quick"}, "slow()", limits=limits)
    assert isinstance(outcomes[0], TimedOut)
    assert not ended.is_set()
    release.set()
    assert ended.wait(SECONDS)


def test_a_handle_survives_its_cell_and_a_pending_wait_is_cancelled(cells: Cells) -> None:
    """Work under way belongs to the host; a call that waits for the work belongs to the cell."""
    waiting = Hanging()
    methods = {"result": waiting.function(), "done": lambda number: True, "cancel": lambda n: True}
    begin = HostFunction(lambda: {"id": "a"}, returns="handle", methods=methods)

    async def begun() -> bool:
        return waiting.begun.is_set()

    wait = IN_THREAD.replace("hang()", "h.result()") + "while not begun(): pass"
    outcomes = cells({"begin": begin, "begun": begun}, "h = begin()", wait, "h.done()")
    assert outcomes[1].ok
    assert waiting.cancelled.wait(SECONDS)
    assert outcomes[2].value == "True"


# Without end, from each of 31 threads; the main thread waits for them, or calls as well.
ENDLESS = """
import threading
def call():
    while True:
        ask(1)
threads = [threading.Thread(target=call, daemon=True) for _ in range(31)]
for thread in threads:
    thread.start()
print("all call", flush=True)
"""


@pytest.mark.parametrize("then", ["threads[0].join()", "call()"], ids=["waits", "calls"])
def test_threads_that_call_without_end_do_not_stop_the_clock(sandbox: Sandbox, then: str) -> None:
    """A call is always open; the functions themselves take next to none of the time."""
    with sandbox.session(host={"ask": lambda number: number}) as session:
        outcome = session.run(ENDLESS + then, timeout=3)
        assert isinstance(outcome, TimedOut)
        assert (outcome.clock, outcome.state, outcome.stdout) == ("execution", "kept", "all call\n")
        assert outcome.usage.execution_seconds >= 3
        assert outcome.usage.waiting_seconds < 1
        assert session.run("6 * 7").value == "42"
