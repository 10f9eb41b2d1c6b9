"""Ready sessions: what happens when one cannot be made."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from typing import Any
from unittest.mock import Mock

import psutil
import pytest

from repl_sandbox import AsyncSandbox, Sandbox
from repl_sandbox.errors import SandboxClosed
from repl_sandbox.host.pool import ReadySessions
from tests.internals import init_pid, session_lifecycle, zygote_pid
from tests.waiting import eventually


class Source:
    """Begins stand-ins for sessions, or fails on request."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.begun: list[Any] = []

    def __call__(self) -> Any:
        if self.error is not None:
            raise self.error
        self.begun.append(Mock())
        return self.begun[-1]


def test_a_pool_that_could_not_be_filled_is_filled_again() -> None:
    source = Source()
    pool = ReadySessions(1, source)
    pool.fill()
    source.error = OSError(24, "Too many open files")
    assert pool.take() is not None
    with pytest.raises(OSError, match="Too many"):
        pool.fill()
    source.error = None
    assert pool.take() is None  # the caller makes its own
    pool.fill()
    assert pool.take() is not None


def test_only_missing_sessions_are_begun() -> None:
    source = Source()
    pool = ReadySessions(2, source)
    for _ in range(3):
        pool.fill()
    assert len(source.begun) == 2


def test_no_session_is_begun_before_the_threshold_of_requests() -> None:
    source = Source()
    pool = ReadySessions(1, source, after=3)
    for _ in range(3):
        pool.fill()
        assert not source.begun
        assert pool.take() is None
    pool.fill()
    assert len(source.begun) == 1


def test_a_returned_session_is_reused_first() -> None:
    pool = ReadySessions(1, Source())
    pool.fill()
    links = pool.take()
    assert links is not None
    pool.fill()
    assert pool.give_back(links)
    assert pool.take() is links


def test_a_closed_pool_begins_and_keeps_none() -> None:
    source = Source()
    pool = ReadySessions(1, source)
    pool.fill()
    assert pool.close() == tuple(source.begun)
    pool.fill()
    assert len(source.begun) == 1
    assert not pool.give_back(source.begun[0])


def test_a_session_whose_pool_closed_meanwhile_is_discarded() -> None:
    made = Mock()

    def begin() -> Any:
        pool.close()
        return made

    pool = ReadySessions(1, begin)
    pool.fill()
    made.close.assert_called_once_with()


def test_sessions_made_ahead_of_time_are_not_handed_out_once_their_template_has_ended() -> None:
    """Ready sessions end with their template. A caller that gets SandboxClosed makes another
    sandbox.
    """
    with Sandbox(ready=2) as sandbox:
        zygote = zygote_pid(sandbox)
        os.kill(zygote, signal.SIGKILL)
        os.waitid(os.P_PID, zygote, os.WEXITED | os.WNOWAIT)
        with pytest.raises(SandboxClosed):
            sandbox.session()


def test_a_session_that_ended_while_it_waited_is_not_handed_out() -> None:
    with Sandbox(ready=2) as sandbox:
        for links in session_lifecycle(sandbox).pool.ready:
            os.kill(links.pid, signal.SIGKILL)
            eventually(lambda links=links: links.ended)

        with sandbox.session() as session:
            assert session.run("1 + 1").value == "2"


def test_an_event_loop_does_not_wait_for_the_template_to_reap_ended_sessions() -> None:
    async def main() -> str | None:
        async with AsyncSandbox(ready=2) as sandbox:
            plain = sandbox.plain
            assert plain is not None
            for links in session_lifecycle(plain).pool.ready:
                os.kill(links.pid, signal.SIGKILL)
                await asyncio.to_thread(eventually, lambda links=links: links.ended)
            os.kill(zygote_pid(plain), signal.SIGSTOP)
            making = asyncio.ensure_future(sandbox.session())
            # While the template stands still, only this loop has it go on.
            asyncio.get_running_loop().call_later(0.2, os.kill, zygote_pid(plain), signal.SIGCONT)
            async with await making as session:
                return (await session.run("1 + 1")).value

    assert asyncio.run(main()) == "2"


def test_a_cancelled_acquisition_takes_no_session() -> None:
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


def _has_ended(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE  # until the zygote looks
    except psutil.NoSuchProcess:
        return True


def test_an_event_loop_opens_and_closes_sessions_in_no_thread() -> None:
    async def main() -> set[str]:
        async with AsyncSandbox(ready=1, isolation="jailed") as sandbox:
            before = set(threading.enumerate())
            for _ in range(3):
                session, other = await asyncio.gather(sandbox.session(), sandbox.session())
                assert (await session.run("1 + 1")).value == "2"
                assert (await other.run("1 + 1")).value == "2"
                first = init_pid(session)
                await asyncio.gather(session.close(), other.close())
                assert _has_ended(first)
            assert sandbox.statistics().open == 0
            return {thread.name for thread in set(threading.enumerate()) - before}

    assert asyncio.run(main()) <= {"repl-watchdog"}


def test_a_session_whose_closing_is_cancelled_with_its_loop_is_released() -> None:
    sandbox = Sandbox(isolation="jailed")

    async def main() -> int:
        session = await AsyncSandbox.of(sandbox).session()
        await session.run("1")
        closing = asyncio.create_task(session.close())
        await asyncio.sleep(0)
        assert not closing.done()
        return int(init_pid(session))

    try:
        first = asyncio.run(main())
        assert sandbox.statistics().open == 0
        eventually(lambda: not os.path.exists(f"/proc/{first}"))
    finally:
        sandbox.close()
