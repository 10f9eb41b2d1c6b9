"""The end of sandboxes and sessions: pools, closing, retiring, warnings when nobody closes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from repl_sandbox import (
    AsyncSandbox,
    AsyncSession,
    Finished,
    Sandbox,
    SandboxClosed,
    SandboxError,
    Session,
    SessionClosed,
)
from repl_sandbox.session.core import Core
from tests.internals import init_pid, session_lifecycle
from tests.waiting import LONG, eventually


def test_ready_sessions_are_fresh_and_replaced() -> None:
    with Sandbox(ready=2) as sandbox:
        assert sandbox.statistics().ready == 2
        for _ in range(6):
            with sandbox.session() as session:
                assert session.run("'x' in globals()").value == "False"
                session.run("x = 1")
        assert sandbox.statistics().open == 0
        assert sandbox.statistics().started >= 6


def test_max_sessions_is_kept() -> None:
    with Sandbox(max_sessions=1) as sandbox:
        with sandbox.session() as session:
            with pytest.raises(SandboxError, match="max_sessions=1"):
                sandbox.session()
            assert isinstance(session.run("1"), Finished)
        sandbox.session().close()


def test_max_sessions_holds_for_concurrent_callers() -> None:
    def opened(_: int) -> Session | SandboxError:
        try:
            return sandbox.session()
        except SandboxError as error:
            return error

    with Sandbox(max_sessions=2) as sandbox, ThreadPoolExecutor(8) as threads:
        came = list(threads.map(opened, range(8)))
        sessions = [each for each in came if isinstance(each, Session)]
        assert len(sessions) == sandbox.statistics().open == 2
        assert all("max_sessions=2" in str(each) for each in came if each not in sessions)
        sessions[0].close()
        sessions[1].branch().close()


def test_a_closed_sandbox_says_so() -> None:
    sandbox = Sandbox()
    sandbox.close()
    sandbox.close()
    with pytest.raises(SandboxClosed):
        sandbox.session()


@pytest.mark.parametrize(
    "use",
    [
        lambda session: session.run("1"),
        lambda session: session.set("x", 1),
        lambda session: session.files.list(),
        lambda session: session.branch(),
        lambda session: session.interrupt(),
        lambda session: session.isolation,
        lambda session: session.cpu_seconds,
    ],
    ids=["run", "set", "files", "branch", "interrupt", "isolation", "cpu_seconds"],
)
def test_a_session_is_closed_when_its_sandbox_is(use: Callable[[Session], object]) -> None:
    with Sandbox() as sandbox:
        session = sandbox.session()
    assert "closed" in repr(session)
    with pytest.raises(SessionClosed):
        use(session)
    session.close()


def test_a_session_whose_sandbox_closes_during_its_creation_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sandbox = Sandbox()
    ready = Core.ready

    def close(core: Core) -> None:
        ready(core)
        sandbox.close()

    monkeypatch.setattr(Core, "ready", close)
    with pytest.raises(SandboxClosed):
        sandbox.session()
    assert sandbox.statistics().open == 0


async def test_an_asynchronous_session_is_closed_when_its_sandbox_is() -> None:
    async with AsyncSandbox() as sandbox:
        session = await sandbox.session()
    assert "closed" in repr(session)
    with pytest.raises(SessionClosed):
        await session.run("1")
    await session.close()


@pytest.mark.parametrize("tier", ["confined", "process"])
def test_a_session_that_ends_slowly_delays_no_other(tier: str, open_python: str) -> None:
    with Sandbox(isolation=tier, python=open_python, recovery="restart") as sandbox:
        # An init that does not end is killed after 10 s: a machine may be too slow for that, once.
        assert any(held_no_other_up(sandbox) for _ in range(3))


def held_no_other_up(sandbox: Sandbox) -> bool:
    slow, other = sandbox.session(), sandbox.session()
    init = init_pid(slow)
    stop(init)
    closing = threading.Thread(target=slow.close)
    closing.start()
    try:
        eventually(lambda: is_told_to_end(init) or not closing.is_alive())
        with sandbox.session() as third:
            assert third.run("1 + 1").value == "2"
        other.close()
        return closing.is_alive()
    finally:
        with suppress(ProcessLookupError):
            os.kill(init, signal.SIGCONT)
        closing.join()
        assert not psutil.pid_exists(init)


def stop(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    # Of two pending signals it would handle the other one first.
    eventually(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED)


def is_told_to_end(pid: int) -> bool:
    """Whether a SIGTERM waits for the process: proc_pid_status(5)."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    except (FileNotFoundError, ProcessLookupError):
        return False
    pending = re.search(r"^ShdPnd:\t(\w+)$", status, re.MULTILINE)
    assert pending is not None
    return bool(int(pending[1], 16) >> (signal.SIGTERM - 1) & 1)


def test_each_thread_waits_for_the_end_of_its_own_session() -> None:
    """They share one socket to the zygote, on which replies arrive as sessions end."""
    with Sandbox(recovery="restart") as sandbox, ThreadPoolExecutor(8) as threads:

        def live(number: int) -> str | None:
            with sandbox.session() as session:
                pid = init_pid(session)
                answer = session.run(f"{number} + 1").value
            assert not psutil.pid_exists(pid)
            return answer

        assert list(threads.map(live, range(100))) == [str(number + 1) for number in range(100)]


def test_more_sessions_than_end_at_a_time_all_end() -> None:
    """Each that ends has a descriptor of the zygote's, which gives them 128."""
    with Sandbox(isolation="process", recovery="restart") as sandbox:
        sessions = [sandbox.session() for _ in range(140)]
        inits = [init_pid(session) for session in sessions]
        for pid in inits:
            stop(pid)
        with ThreadPoolExecutor(len(sessions)) as threads:
            closing = [threads.submit(session.close) for session in sessions]
            eventually(
                lambda: (
                    sum(map(is_told_to_end, inits)) == 128 or any(each.done() for each in closing)
                )
            )
            for pid in inits:
                with suppress(ProcessLookupError):  # killed, after 10 s
                    os.kill(pid, signal.SIGCONT)
        assert all(each.result() is None for each in closing)
        assert not any(map(psutil.pid_exists, inits))
        sessions = [sandbox.session() for _ in sessions]
        inits = [init_pid(session) for session in sessions]
    assert not any(map(psutil.pid_exists, inits))


DROPPED = """
import gc
from repl_sandbox import Sandbox

def drop():
    with Sandbox() as closed:
        with closed.with_shared(context="x"):
            pass
        closed.with_shared(context="y")
        gc.collect()
    Sandbox().session()

drop()
gc.collect()
"""


def test_the_warning_about_an_unclosed_sandbox_names_it() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "always::ResourceWarning", "-c", DROPPED],
        capture_output=True,
        text=True,
        timeout=LONG,
        check=True,
    )
    told = [line for line in done.stderr.splitlines() if "unclosed" in line]
    assert all("`with` statement" in line for line in told)
    named = {name for line in told for name in re.findall("unclosed <([A-Za-z]+)", line)}
    assert named == {"Sandbox", "Session"}


async def test_an_unclosed_session_is_warned_of_once() -> None:
    told: list[str] = []
    with warnings.catch_warnings(record=True) as caught, Sandbox(isolation="process") as sandbox:
        warnings.simplefilter("always")
        face = AsyncSandbox.of(sandbox)

        def drop(session: Session | AsyncSession) -> None:
            told.append(f"unclosed <{type(session).__name__} process>")

        drop(sandbox.session())
        drop(await face.session())
        with sandbox.session() as session:
            drop(session.branch())
        async with face.session() as waited:
            pass
        kept = sandbox.session()
        sandbox.session().close()
        assert [str(each.message).partition(":")[0] for each in caught] == told
        assert {each.category for each in caught} == {ResourceWarning}
    del session, waited, kept
    assert len(caught) == len(told) == 3


def test_the_repr_says_tier_and_whether_it_is_open() -> None:
    with Sandbox(isolation="process") as sandbox:
        assert repr(sandbox) == "<Sandbox process, open, sessions: 0>"
        with sandbox.session() as session:
            assert repr(sandbox) == "<Sandbox process, open, sessions: 1>"
            assert repr(session) == "<Session process, open>"
            seen: list[str] = []
            session.run("print(1)", on_output=lambda *_: seen.append(repr(session)))
            assert set(seen) == {"<Session process, busy>"}  # output may come in parts
        assert repr(session) == "<Session process, closed>"
    assert repr(sandbox) == "<Sandbox process, closed>"


async def test_the_repr_of_an_async_sandbox_is_that_of_its_sandbox() -> None:
    sandbox = AsyncSandbox(isolation="process")
    assert repr(sandbox) == "<AsyncSandbox not started>"
    async with sandbox, sandbox.session() as session:
        assert repr(sandbox) == "<AsyncSandbox of <Sandbox process, open, sessions: 1>>"
        assert repr(session) == "<AsyncSession process, open>"


# ── retiring ─────────────────────────────────────────────────────────────────────────────────────


def test_a_retired_sandbox_ends_with_the_last_of_its_sessions() -> None:
    with Sandbox() as outer:
        sandbox = outer.with_shared(text="abc")
        first, second = sandbox.session(), sandbox.session()
        sandbox.retire()
        for begin in (sandbox.session, lambda: sandbox.with_shared(more="x")):
            with pytest.raises(SandboxClosed, match="retired"):
                begin()
        first.close()
        branch = second.branch()
        second.close()
        with pytest.raises(SandboxError):
            sandbox.restore(branch.checkpoint())
        assert branch.run("text").value == "'abc'"
        assert "open, sessions: 1" in repr(sandbox)
        branch.close()
        assert "closed" in repr(sandbox)
        with outer.session() as session:
            assert session.run("1").value == "1"


def test_a_retired_sandbox_without_sessions_is_closed() -> None:
    sandbox = Sandbox()
    sandbox.retire()
    sandbox.retire()
    assert "closed" in repr(sandbox)


def test_sessions_that_end_at_the_same_time_end_a_retired_sandbox() -> None:
    with Sandbox() as outer:
        for _ in range(5):
            sandbox = outer.with_shared(text="abc")
            sessions = [sandbox.session() for _ in range(4)]
            with ThreadPoolExecutor(5) as threads:
                ends = [threads.submit(each.close) for each in sessions]
                ends.append(threads.submit(sandbox.retire))
                for end in ends:
                    end.result(LONG)
            assert "closed" in repr(sandbox)


def test_a_session_that_could_not_be_made_holds_no_retired_sandbox(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sandbox = Sandbox()

    def retired(*_: object) -> None:
        sandbox.retire()
        raise SandboxError("no room")

    monkeypatch.setattr(session_lifecycle(sandbox).pool, "take", retired)
    with pytest.raises(SandboxError, match="no room"):
        sandbox.session()
    assert "closed" in repr(sandbox)


async def test_an_async_sandbox_can_be_retired() -> None:
    sandbox = AsyncSandbox()
    await sandbox.retire()  # it has not begun
    session = await sandbox.session()
    await AsyncSandbox.of(_plain(sandbox)).retire()  # an AsyncSandbox does not own its sandbox
    assert "sessions: 1" in repr(sandbox)
    await sandbox.retire()
    assert (await session.run("1")).value == "1"
    await session.close()
    assert "closed" in repr(sandbox)


def _plain(sandbox: AsyncSandbox) -> Sandbox:
    assert sandbox.plain is not None
    return sandbox.plain
