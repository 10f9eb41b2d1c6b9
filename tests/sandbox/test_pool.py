"""Ready sessions: what happens when one cannot be made."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest.mock import ANY

import pytest

from repl_sandbox import AsyncSandbox, Sandbox
from repl_sandbox.errors import SandboxClosed, SandboxError
from repl_sandbox.pool import Pool
from tests.waiting import eventually


class Source:
    """Makes stand-ins for sessions, or fails while it is told to."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.failed = threading.Event()

    def __call__(self) -> Any:
        if self.error is not None:
            self.failed.set()
            raise self.error
        return object()


@pytest.mark.parametrize(
    "error", [SandboxError("no"), OSError(24, "Too many open files"), RuntimeError(), MemoryError()]
)
def test_a_pool_that_could_not_be_filled_is_filled_again(error: Exception) -> None:
    source = Source()
    pool = Pool(1, source)
    source.error = error
    assert pool.take() is not None
    assert source.failed.wait(60)

    source.error = None
    assert pool.take() is None  # none is ready: the caller makes its own
    eventually(lambda: pool.take() is not None)
    pool.close()


def test_a_pool_that_cannot_be_filled_can_be_closed() -> None:
    source = Source()
    pool = Pool(1, source)
    source.error = SandboxError("no")
    pool.take()
    assert source.failed.wait(60)
    assert pool.close() == ()


class Slow(Source):
    """Makes one when it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.let = threading.Semaphore(0), threading.Semaphore(0)

    def __call__(self) -> Any:
        self.asked.release()
        assert self.let.acquire(timeout=60)
        return super().__call__()


def test_nothing_is_made_before_so_many_were_asked_for() -> None:
    asked: list[int] = []
    before: list[int] = []

    def spawn() -> Any:
        before.append(len(asked))
        return object()

    pool = Pool(1, spawn, after=3)
    for number in range(3):
        asked.append(number)
        assert pool.take() is None
    eventually(lambda: len(pool) == 1)
    assert before == [3]
    assert len(pool.close()) == 1


def test_one_that_is_being_made_is_waited_for_by_one_only() -> None:
    source = Slow()
    pool = Pool(1, source, after=1)
    assert pool.take_or_wait() is None  # none was being made
    assert source.asked.acquire(timeout=60)
    with ThreadPoolExecutor() as threads:
        first = threads.submit(pool.take_or_wait)
        eventually(lambda: pool._claimed)
        assert pool.take_or_wait() is None
        assert not first.done()
        source.let.release()
        assert first.result(timeout=60) is not None
        source.let.release()
        eventually(lambda: len(pool) == 1)
    assert len(pool.close()) == 1


def test_who_waits_for_one_that_could_not_be_made_makes_another() -> None:
    source = Slow()
    pool = Pool(1, source, after=1)
    assert pool.take() is None
    assert source.asked.acquire(timeout=60)
    source.error = SandboxError("no")
    with ThreadPoolExecutor() as threads:
        first = threads.submit(pool.take_or_wait)
        eventually(lambda: pool._claimed)
        source.let.release()
        assert first.result(timeout=60) is None
    source.let.release()  # it was asked for, and so it is tried again
    assert pool.close() == ()


def test_a_pool_is_closed_while_one_waits_for_what_is_being_made() -> None:
    source = Slow()
    pool = Pool(1, source, after=1)
    assert pool.take() is None
    assert source.asked.acquire(timeout=60)
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(pool.take_or_wait)
        eventually(lambda: pool._claimed)
        closing = threads.submit(pool.close)
        source.let.release()
        had, left = waiting.result(timeout=60), closing.result(timeout=60)
    assert ([had] if had else []) + list(left) == [ANY]


def test_sessions_made_ahead_of_time_are_not_handed_out_once_their_template_has_ended() -> None:
    """They end with it. Who is told that it is closed makes another, and loses nothing."""
    with Sandbox(ready=2) as sandbox:
        zygote = sandbox._zygote.pid
        os.kill(zygote, signal.SIGKILL)
        os.waitid(os.P_PID, zygote, os.WEXITED | os.WNOWAIT)
        with pytest.raises(SandboxClosed):
            sandbox.session()


def test_a_session_that_ended_while_it_waited_is_not_handed_out() -> None:
    with Sandbox(ready=2) as sandbox:
        for links in sandbox._supply.ready:
            os.kill(links.pid, signal.SIGKILL)
            eventually(lambda links=links: links.ended)

        with sandbox.session() as session:
            assert session.run("1 + 1").value == "2"


def test_an_event_loop_does_not_wait_for_the_template_to_bury_those_that_ended() -> None:
    async def main() -> str | None:
        async with AsyncSandbox(ready=2) as sandbox:
            plain = sandbox.plain
            assert plain is not None
            for links in plain._supply.ready:
                os.kill(links.pid, signal.SIGKILL)
                await asyncio.to_thread(eventually, lambda links=links: links.ended)
            os.kill(plain._zygote.pid, signal.SIGSTOP)
            making = asyncio.ensure_future(sandbox.session())
            # While the template stands still, only this loop has it go on.
            asyncio.get_running_loop().call_later(0.2, os.kill, plain._zygote.pid, signal.SIGCONT)
            async with await making as session:
                return (await session.run("1 + 1")).value

    assert asyncio.run(main()) == "2"


def test_who_is_cancelled_before_a_session_is_taken_takes_none() -> None:
    async def main() -> tuple[bool, int]:
        async with AsyncSandbox(ready=1) as sandbox:
            await sandbox.start()

            async def ask() -> None:
                asyncio.current_task().cancel()
                await sandbox.session()

            asking = asyncio.create_task(ask())
            await asyncio.wait([asking])
            return asking.cancelled(), sandbox.statistics().open

    assert asyncio.run(main()) == (True, 0)
