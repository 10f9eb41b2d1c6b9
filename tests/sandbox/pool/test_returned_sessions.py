"""An unused session serves the next caller; any other one is ended."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator

import pytest

from repl_sandbox import AsyncSandbox, Limits, Sandbox, Session
from repl_sandbox.errors import SandboxClosed, SessionClosed
from tests.internals import init_pid, session_lifecycle, worker_pid
from tests.waiting import eventually


@pytest.fixture
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(isolation="jailed", ready=1) as sandbox:
        yield sandbox


def pid(session: Session) -> int:
    return init_pid(session)


def waiting(sandbox: Sandbox) -> set[int]:
    return {links.pid for links in session_lifecycle(sandbox).pool.ready}


def test_an_unused_session_serves_the_next_caller(sandbox: Sandbox) -> None:
    with sandbox.session(host={"ask": lambda: 1}, seed=5, answers="strict") as session:
        first = pid(session)
        session.set("secret", "a short text, which would go with the first cell")
    assert first in waiting(sandbox)
    with pytest.raises(SessionClosed):
        session.run("1")
    session.close()  # closed a second time: another caller owns it now

    met = []
    while first not in met:
        session = sandbox.session()
        met.append(pid(session))
    names = session.run("sorted({'secret', 'ask', 'FINAL', 'answer'} & set(dir()))").value
    assert names == "[]"
    assert session.run("import random; random.random()").ok
    session.close()
    assert first not in waiting(sandbox)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


USES: dict[str, Callable[[Session], object]] = {
    "a cell": lambda session: session.run("x = 1"),
    "a variable that is asked for": lambda session: session.get("x"),
    "a long variable": lambda session: session.set("x", "x" * 100_000),
    "a file": lambda session: session.files.put("f", b"1"),
    "a look at its files": lambda session: session.files.list(),
    "a branch": lambda session: session.branch().close(),
    "a checkpoint": lambda session: session.checkpoint(),
}


@pytest.mark.parametrize("use", USES)
def test_a_used_session_is_ended(sandbox: Sandbox, use: str) -> None:
    with sandbox.session() as session:
        first = pid(session)
        try:
            USES[use](session)
        except LookupError:
            pass
    assert first not in waiting(sandbox)
    with pytest.raises(ProcessLookupError):
        os.kill(first, 0)


def test_a_dead_session_is_ended(sandbox: Sandbox) -> None:
    with sandbox.session() as session:
        first = pid(session)
        os.kill(worker_pid(session), signal.SIGKILL)
        session.run("1")
    assert first not in waiting(sandbox)


def test_a_session_with_other_limits_is_ended(sandbox: Sandbox) -> None:
    with sandbox.session(limits=Limits(processes=5)) as session:
        first = pid(session)
    assert first not in waiting(sandbox)


def test_without_ready_sessions_each_is_ended() -> None:
    with Sandbox(isolation="jailed") as sandbox, sandbox.session() as session:
        session.close()
        assert sandbox.statistics().ready == 0


def test_the_number_of_kept_sessions_is_limited(sandbox: Sandbox) -> None:
    opened = [sandbox.session() for _ in range(16)]
    for session in opened:
        session.close()
    eventually(lambda: 8 <= sandbox.statistics().ready <= 10)
    assert sandbox.statistics().open == 0
    alive = [pid(session) for session in opened if _is_alive(pid(session))]
    assert set(alive) <= waiting(sandbox)


def test_a_call_in_progress_raises_at_the_end_of_its_session(sandbox: Sandbox) -> None:
    session = sandbox.session()
    begun = threading.Event()
    outcomes = []

    def run() -> None:
        try:
            session.run("print(1)\nimport time; time.sleep(60)", on_output=lambda *_: begun.set())
        except SessionClosed as error:
            outcomes.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    assert begun.wait(60)
    first = pid(session)
    session.close()
    thread.join()
    assert outcomes
    assert first not in waiting(sandbox)


def test_a_closed_sandbox_keeps_no_session() -> None:
    with Sandbox(isolation="jailed", ready=1) as sandbox:
        session = sandbox.session()
        first = pid(session)
    session.close()
    with pytest.raises(SandboxClosed):
        sandbox.session()
    with pytest.raises(ProcessLookupError):
        os.kill(first, 0)


def test_a_retired_sandbox_closes_with_its_last_session() -> None:
    sandbox = Sandbox(isolation="jailed", ready=1)
    session = sandbox.session()
    sandbox.retire()
    session.close()
    assert "closed" in repr(sandbox)


def test_a_session_whose_files_are_in_use_is_ended() -> None:
    """As at the end of a loop, which cancels all tasks while a thread goes on."""

    async def main() -> None:
        async with AsyncSandbox(isolation="jailed", ready=1) as sandbox:
            plain = sandbox.plain
            assert plain is not None
            session = await sandbox.session()
            putting = asyncio.create_task(session.files.put("secret", bytes(24 << 20)))
            await asyncio.sleep(0)
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
            first = init_pid(session)
            await session.close()
            await asyncio.wait([putting])
            assert first not in waiting(plain)
            async with sandbox.session() as other:
                assert (await other.run("__import__('os').listdir()")).value == "[]"

    asyncio.run(main())


def test_an_event_loop_returns_sessions_too() -> None:
    async def main() -> None:
        async with AsyncSandbox(isolation="jailed", ready=1) as sandbox:
            plain = sandbox.plain
            assert plain is not None
            async with sandbox.session() as session:
                await session.set("x", 1)
                first = init_pid(session)
            assert first in waiting(plain)
            met = []
            while first not in met:
                session = await sandbox.session()
                met.append(init_pid(session))
            assert (await session.run("'x' in dir()")).value == "False"
            await session.close()
            assert first not in waiting(plain)

    asyncio.run(main())
