"""The same engine on an event loop."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import select
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import psutil
import pytest

from repl_sandbox import (
    AsyncSandbox,
    AsyncSession,
    Finished,
    Killed,
    Limits,
    Raised,
    Sandbox,
    SandboxClosed,
    SessionBusy,
    TimedOut,
)
from repl_sandbox.options import SandboxArguments
from repl_sandbox.session.asyncio_ import DescriptorWatch
from repl_sandbox.session.io import SessionIO
from repl_sandbox.types import Answer
from tests.descriptors import opened
from tests.internals import session_links, worker_pid, zygote_pid
from tests.sandbox.conftest import PATIENT
from tests.waiting import until

SECONDS = 60  # timeout for events that take milliseconds on an idle processor


@pytest.fixture
async def sandbox() -> AsyncIterator[AsyncSandbox]:
    async with AsyncSandbox(limits=PATIENT) as sandbox:
        yield sandbox


async def test_a_session_is_awaited_or_entered(sandbox: AsyncSandbox) -> None:
    session = await sandbox.session()
    await session.run("x = 40")
    assert (await session.run("x + 2")).value == "42"
    await session.close()
    async with sandbox.session() as other:
        assert isinstance(await other.run("x"), Raised)
    assert sandbox.statistics().open == 0


def test_an_async_sandbox_takes_the_arguments_of_a_sandbox_and_no_others() -> None:
    plain = inspect.signature(Sandbox).parameters

    assert {name: each.annotation for name, each in plain.items()} == {
        name: each.__forward_arg__ for name, each in SandboxArguments.__annotations__.items()
    }
    with pytest.raises(TypeError, match="no argument 'limit'"):
        AsyncSandbox(limit=PATIENT)  # type: ignore[call-arg]


@pytest.mark.parametrize(("before", "timeout"), [(SECONDS, 0.2), (0.2, 0.6)])
async def test_each_cell_has_its_own_timeout(
    sandbox: AsyncSandbox, before: float, timeout: float
) -> None:
    async with sandbox.session() as session:
        assert isinstance(await session.run("x = 1", timeout=before), Finished)
        outcome = await session.run("while True: pass", timeout=timeout)
        assert isinstance(outcome, TimedOut)
        assert timeout <= outcome.usage.execution_seconds < SECONDS
        assert (await session.run("x")).value == "1"


async def test_sessions_run_side_by_side(sandbox: AsyncSandbox) -> None:
    """Each cell waits for the other's output, so neither can run alone."""
    first_spoke, second_spoke = asyncio.Event(), asyncio.Event()

    async def wait_for_second() -> None:
        await second_spoke.wait()

    async def wait_for_first() -> None:
        await first_spoke.wait()

    async with (
        sandbox.session(host={"wait": wait_for_second}) as first,
        sandbox.session(host={"wait": wait_for_first}) as second,
    ):
        outcomes = await asyncio.wait_for(
            asyncio.gather(
                first.run("print('one')\nwait()", on_output=lambda *_: first_spoke.set()),
                second.run("print('two')\nwait()", on_output=lambda *_: second_spoke.set()),
            ),
            SECONDS,
        )
    assert all(isinstance(outcome, Finished) for outcome in outcomes)


async def test_values_variables_and_interrupt(sandbox: AsyncSandbox) -> None:
    async with sandbox.session() as session:
        await session.set("data", "x" * 1_000_000)
        assert await session.get("data") == "x" * 1_000_000
        assert [variable.name for variable in await session.variables()] == ["data"]
        started = asyncio.Event()
        running = asyncio.create_task(
            session.run("print('go')\nwhile True: pass", on_output=lambda *_: started.set())
        )
        await asyncio.wait_for(started.wait(), SECONDS)
        with pytest.raises(SessionBusy):
            await session.run("1")
        await session.interrupt()
        assert isinstance(await running, Raised)


async def test_timeout_and_death_are_outcomes(sandbox: AsyncSandbox) -> None:
    async with sandbox.session() as session:
        assert isinstance(await session.run("while True: pass", timeout=0.1), TimedOut)
        assert isinstance(await session.run("import os; os._exit(0)"), Killed)
        assert (await session.run("1 + 1")).value == "2"


async def test_a_cancelled_call_leaves_a_session_that_goes_on(sandbox: AsyncSandbox) -> None:
    async with sandbox.session() as session:
        await session.run("x = 1")
        started = asyncio.Event()
        running = asyncio.create_task(
            session.run("print('go')\nwhile True: pass", on_output=lambda *_: started.set())
        )
        await asyncio.wait_for(started.wait(), SECONDS)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert (await session.run("x")).value == "1"


async def cancelled_at(
    wait: int, monkeypatch: pytest.MonkeyPatch, call: Callable[[], Coroutine[Any, Any, object]]
) -> bool:
    """Make `call`, cancelled at its wait number `wait`; False if it has not so many."""
    waits, ready = itertools.count(1), DescriptorWatch.ready

    async def cancelled(
        watch: DescriptorWatch, io: SessionIO, wake: float
    ) -> list[tuple[int, int]]:
        task = asyncio.current_task()
        if next(waits) == wait and task is not None:
            task.cancel()
        return await ready(watch, io, wake)

    with monkeypatch.context() as patched:
        patched.setattr(DescriptorWatch, "ready", cancelled)
        try:
            await call()
        except asyncio.CancelledError:
            return True
        return False


DIE = "import os, signal\nx = -1\nos.kill(os.getpid(), signal.SIGKILL)"


async def test_a_recovery_whose_caller_is_cancelled_completes(
    sandbox: AsyncSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with sandbox.session() as session:
        await session.run("x = 1")
        wait = 1
        while await cancelled_at(wait, monkeypatch, lambda: session.run(DIE)):
            assert await session.get("x") == 1
            wait += 1
        assert wait > 3  # the cell itself, the death notice, the snapshot
        assert (await session.run("x")).value == "1"


async def test_a_worker_that_died_between_cells_is_replaced_despite_cancelled_callers(
    sandbox: AsyncSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with sandbox.session() as session:
        wait, cancelled = 1, True
        while cancelled:
            await session.run("x = 1")
            await session.get("x")  # the snapshot is taken by then
            worker = psutil.Process(worker_pid(session))
            worker.kill()
            psutil.wait_procs([worker])
            cancelled = await cancelled_at(wait, monkeypatch, lambda: session.run("x = -1"))
            assert await session.get("x") in ((1, -1) if cancelled else (-1,))
            wait += 1
        assert wait > 3


async def test_a_rollback_is_done_or_not_despite_cancelled_callers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with AsyncSandbox() as sandbox, sandbox.session() as session:
        await session.run("x = 1")
        wait, cancelled = 1, True
        while cancelled:
            await session.run("x = 2")
            cancelled = await cancelled_at(wait, monkeypatch, session.rollback)
            if await session.get("x") == 2:
                assert cancelled
                await session.rollback()
            outcome = await session.run("x")
            assert (outcome.value, outcome.state) == ("1", "kept")
            await session.rollback()
            wait += 1
        assert wait > 2


class BusyThread(ThreadPoolExecutor):
    """One thread that blocks until `free` is set; `asked`: work is queued for it."""

    def __init__(self) -> None:
        super().__init__(1)
        self.free, self.asked = threading.Event(), asyncio.Event()
        super().submit(self.free.wait)

    def submit(self, work: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.asked.set()
        return super().submit(work, *args, **kwargs)


async def cancelled_in_line(call: Coroutine[Any, Any, object]) -> None:
    """Cancel `call` while its work waits for a thread, then release the thread."""
    loop, thread = asyncio.get_running_loop(), BusyThread()
    loop.set_default_executor(thread)
    calling = asyncio.ensure_future(call)
    await asyncio.wait_for(thread.asked.wait(), SECONDS)
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    thread.free.set()
    await loop.run_in_executor(None, int)


async def test_a_sandbox_whose_closing_is_cancelled_is_closed(sandbox: AsyncSandbox) -> None:
    await sandbox.start()
    await cancelled_in_line(sandbox.close())
    with pytest.raises(SandboxClosed):
        await sandbox.session()


async def test_a_checkpoint_that_is_cancelled_leaves_no_file(sandbox: AsyncSandbox) -> None:
    async with sandbox.session() as session:
        await session.run("x = 1")
        before = opened("self")
        await cancelled_in_line(session.checkpoint())
        # Sessions before this one may end meanwhile, and a watchdog has files open for moments.
        await until(lambda: opened("self") <= before)
        assert (await session.run("x")).value == "1"


async def test_the_event_loop_runs_while_a_cell_runs(sandbox: AsyncSandbox) -> None:
    async with sandbox.session() as session:
        running = asyncio.create_task(session.run("while True: pass"))
        for _ in range(10):
            await asyncio.sleep(0.01)
        assert not running.done()
        await session.interrupt()
        assert isinstance(await running, Raised)


async def test_coroutine_functions_run_on_the_callers_loop(sandbox: AsyncSandbox) -> None:
    here = asyncio.get_running_loop()

    async def same_loop(number: int) -> list[object]:
        return [number, asyncio.get_running_loop() is here]

    async with sandbox.session(host={"same_loop": same_loop}) as session:
        assert (await session.run("same_loop(7)")).value == "[7, True]"
        outcome = await session.run("same_loop()")
        assert outcome.error is not None
        assert outcome.error.type == "TypeError"


async def test_while_an_answer_is_validated_the_event_loop_runs_and_the_cell_waits(
    sandbox: AsyncSandbox,
) -> None:
    asked, verdict = asyncio.Event(), asyncio.Event()

    async def accept(answer: Answer) -> None:
        asked.set()
        await verdict.wait()

    async with sandbox.session(answers="strict", on_answer=accept) as session:
        running = asyncio.create_task(session.run("FINAL(1)\nprint('on')"))
        await asyncio.wait_for(asked.wait(), SECONDS)
        verdict.set()
        outcome = await asyncio.wait_for(running, SECONDS)
        assert [answer.value for answer in outcome.answers] == [1]
        assert outcome.stdout == "on\n"
        assert (await session.run("FINAL(2)")).answers[0].value == 2


async def test_an_answer_whose_caller_is_cancelled_is_not_kept(sandbox: AsyncSandbox) -> None:
    asked, left = asyncio.Event(), asyncio.Event()

    async def never(answer: Answer) -> None:
        asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            left.set()

    async with sandbox.session(
        answers="strict", on_answer=never, limits=Limits(timeout=SECONDS, host_timeout=0.2)
    ) as session:
        outcome = await session.run("FINAL(1)")
        assert isinstance(outcome, TimedOut) and outcome.answers == ()
        await asyncio.wait_for(left.wait(), SECONDS)
        asked.clear()
        left.clear()
        running = asyncio.create_task(session.run("FINAL(2)"))
        await asyncio.wait_for(asked.wait(), SECONDS)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await asyncio.wait_for(left.wait(), SECONDS)
        assert (await session.run("3")).answers == ()


async def test_concurrently_requested_sessions_share_one_template() -> None:
    sandbox = AsyncSandbox()
    first, second = await asyncio.gather(sandbox.session(), sandbox.session())
    assert sandbox.statistics().open == 2
    await first.close()
    await second.close()
    await sandbox.close()


async def test_a_session_whose_caller_is_cancelled_is_ended() -> None:
    async with AsyncSandbox(max_sessions=1) as sandbox:
        await sandbox.start()
        assert sandbox.plain is not None
        zygote = psutil.Process(zygote_pid(sandbox.plain))
        before = {each.pid for each in zygote.children()}
        zygote.suspend()  # no session begins before the caller is cancelled
        opening = asyncio.ensure_future(sandbox.session().__aenter__())
        for _ in range(3):  # it has been asked for
            await asyncio.sleep(0)
        opening.cancel()
        zygote.resume()
        with pytest.raises(asyncio.CancelledError):
            await opening
        async with sandbox.session() as session:
            assert (await session.run("6 * 7")).value == "42"
        await until(lambda: {each.pid for each in zygote.children()} <= before)


async def test_a_session_ends_although_its_closing_is_cancelled(sandbox: AsyncSandbox) -> None:
    session = await sandbox.session()
    await session.run("x = 1")  # it is watched from now on
    before = opened("self")
    closing = asyncio.ensure_future(session.close())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert sandbox.statistics().open == 0
    # The socket of the worker, the control socket, its outputs, and their registrations in the
    # loop.
    await until(lambda: len(before - opened("self")) >= 5)


async def test_closing_waits_for_a_cancelled_start() -> None:
    sandbox = AsyncSandbox()
    starting = asyncio.ensure_future(sandbox.start())
    await asyncio.sleep(0)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    await sandbox.close()
    with pytest.raises(SandboxClosed):
        await sandbox.session()


async def test_the_reason_for_a_weaker_tier_is_available(sandbox: AsyncSandbox) -> None:
    assert sandbox.refusals == ()


async def test_input_between_calls_does_not_keep_the_loop_busy(
    sandbox: AsyncSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread of the code writes while no call is active; the output belongs to the next cell."""
    loop, calls = asyncio.get_running_loop(), 0
    add_reader = loop.add_reader

    def counting(fd, callback):
        def counted():
            nonlocal calls
            calls += 1
            callback()

        add_reader(fd, counted)

    monkeypatch.setattr(loop, "add_reader", counting)
    async with sandbox.session() as session:
        # It may begin when the cell has ended.
        await session.run(
            "import os, threading, time\ndef late():\n"
            "    while not os.path.exists('go'): time.sleep(0.01)\n    print('late')\n"
            "threading.Thread(target=late).start()"
        )
        await session.files.put("go", b"")
        before = calls
        async with asyncio.timeout(SECONDS):
            while not select.select([session_links(session).stdout], [], [], 0)[0]:  # noqa: ASYNC110 (nothing tells of it but looking)
                await asyncio.sleep(0)
        for _ in range(100):
            await asyncio.sleep(0)

        assert calls - before < 10
        assert (await session.run("1")).stdout == "late\n"


def test_a_session_may_move_to_another_event_loop() -> None:
    with Sandbox(limits=PATIENT) as plain:
        sandbox = AsyncSandbox.of(plain)
        session = asyncio.run(_opened(sandbox))
        assert asyncio.run(session.run("x = 1\nx")).value == "1"
        assert asyncio.run(session.run("x + 1")).value == "2"
        asyncio.run(session.close())


async def _opened(sandbox: AsyncSandbox) -> AsyncSession:
    session = await sandbox.session()
    await session.run("x = 0")
    return session


async def test_output_over_the_limit_is_dropped_while_others_are_served() -> None:
    async with AsyncSandbox(limits=Limits(timeout=60, output="64KiB")) as sandbox:
        async with sandbox.session() as flooding, sandbox.session() as other:
            flood = asyncio.create_task(
                flooding.run("print('begin', 'x' * 2_000_000, 'end')\n'done'")
            )
            answers = [(await other.run(f"{n} + 1")).value for n in range(20)]
            outcome = await flood

    assert answers == [str(n + 1) for n in range(20)]
    assert outcome.value == "'done'"
    assert outcome.stdout.startswith("begin x") and outcome.stdout.endswith("x end\n")
    dropped = len("begin  end\n") + 2_000_000 - (64 << 10)
    assert f"({dropped:,} bytes of output dropped" in outcome.stdout
