"""`BackgroundLoop`: plain calls wait for work on a loop, and who is interrupted leaves none
behind.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from repl_env.common import threads
from repl_env.common.threads import BackgroundLoop
from tests.late_signals import told_by
from tests.repl_env.environment_internals import stop_loop


class Lines:
    """Counts the executed lines of the module in this thread, and raises an interrupt before one of
    them.

    Work that `work` received before that line has begun.
    """

    def __init__(self, work: BackgroundLoop, strike: int | None = None) -> None:
        self.count = 0
        self._work, self._strike = work, strike

    def __call__(self, frame: Any, event: str, argument: object) -> Any:
        if frame.f_code.co_filename != threads.__file__:
            return None
        if event == "line":
            self.count += 1
            if self.count == self._strike:
                self._work.wait_for(nothing())  # not traced
                raise KeyboardInterrupt
        return self


@contextmanager
def traced(lines: Lines) -> Iterator[None]:
    before = sys.gettrace()
    sys.settrace(lines)
    try:
        yield
    finally:
        sys.settrace(before)


async def nothing() -> None:
    pass


def waiting(work: BackgroundLoop, coroutine: Any) -> None:
    work.wait_for(coroutine)


def hearing(work: BackgroundLoop, coroutine: Any) -> None:
    work.wait_with_callback(lambda tell: coroutine, lambda: None)


@pytest.mark.parametrize(("call", "after"), [(waiting, 1), (hearing, 1)])
def test_ctrl_c_at_any_line_leaves_no_work_running(
    call: Callable[[BackgroundLoop, Any], None], after: int
) -> None:
    """`after`: lines that follow the one in which the end of the work is waited for."""
    work = BackgroundLoop("tested")
    call(work, nothing())  # the thread is there
    with traced(lines := Lines(work)):
        call(work, nothing())
    outcomes = []

    for number in range(1, lines.count - after + 1):
        begun, ended = threading.Event(), threading.Event()

        async def endless(begun: threading.Event = begun, ended: threading.Event = ended) -> None:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

        coroutine = endless()
        with pytest.raises(KeyboardInterrupt), traced(Lines(work, number)):
            call(work, coroutine)
        work.wait_for(nothing())  # whatever was to begin has begun
        if not begun.is_set():
            coroutine.close()
        outcomes.append((begun.is_set(), begun.is_set() and ended.wait(60)))
    stop_loop(work)

    assert {(False, False), (True, True)} == set(outcomes)


def test_ctrl_c_is_raised_after_the_work_has_ended() -> None:
    """The process may end then, and in one that ends no thread begins that closes a session."""
    work, steps = BackgroundLoop("tested"), list[str]()

    async def endless() -> None:
        try:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            await asyncio.Event().wait()
        finally:
            await asyncio.to_thread(steps.append, "closed")
            steps.append("ended")

    with pytest.raises(KeyboardInterrupt):
        work.wait_for(endless())
    seen = list(steps)
    stop_loop(work)

    assert seen == ["closed", "ended"]


def test_a_callback_returns_after_its_event_was_delivered() -> None:
    work, order = BackgroundLoop("tested"), []

    async def telling(tell: Callable[[int], Awaitable[None]]) -> None:
        for number in range(3):
            order.append(("told", number))
            await tell(number)

    work.wait_with_callback(telling, lambda number: order.append(("heard", number)))
    stop_loop(work)

    assert order == [(what, number) for number in range(3) for what in ("told", "heard")]


_STRUCK = """
import asyncio, queue
from repl_env.common import threads
from tests.late_signals import struck

armed = []

class Struck(queue.SimpleQueue):
    def get(self, *how, **more):
        if not armed:
            return super().get(*how, **more)
        armed.clear()
        return struck(super().get, True, *more.values())

async def for_ever():
    await asyncio.Event().wait()

threads.SimpleQueue = Struck
work = threads.BackgroundLoop("tested")
for wait in (
    lambda: work.wait_for(for_ever()),
    lambda: work.wait_with_callback(lambda tell: for_ever(), print),
):
    work.wait_for(asyncio.sleep(0))
    armed.append(True)
    try:
        wait()
    except KeyboardInterrupt:
        print("interrupted")
"""


def test_ctrl_c_as_a_wait_begins_is_handled_at_once() -> None:
    assert told_by(_STRUCK) == ["interrupted"] * 2
