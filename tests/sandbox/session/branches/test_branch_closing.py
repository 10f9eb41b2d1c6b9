"""The end of branches, and branches on an event loop."""

from __future__ import annotations

import asyncio
import gc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from repl_sandbox import AsyncSandbox, Sandbox, SandboxError, Session, SessionClosed
from tests.internals import init_pid, session_links
from tests.sandbox.session.branches.branching import comes_to_at_most, descriptors
from tests.sandbox.shown_value import value
from tests.waiting import eventually


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_branches_close_in_any_order(sandbox: Sandbox, order: tuple[int, ...]) -> None:
    def held() -> tuple[int, int]:
        gc.collect()
        return descriptors(), len(psutil.Process().children(recursive=True))

    with sandbox.session() as first:
        first.run("x = 1")  # and what is made for the first session of a sandbox is there
    before = held()
    session = sandbox.session()
    session.run("x = 1\nopen('f', 'w').write('1')")
    folder = session_links(session).folder
    one = session.branch()
    two = one.branch()
    lines = [session, one, two]
    for line in lines:
        line.run("import os\nif not os.fork():\n    import time\n    time.sleep(60)")
    for index in order:
        assert value(lines[index], "x") == "1"
        lines[index].close()
        with pytest.raises(SessionClosed):
            lines[index].run("x")
    # Less, if leftovers of earlier tests were collected meanwhile.
    comes_to_at_most(before, held)
    assert not folder or not Path(folder).exists()


def test_the_files_of_a_branch_end_with_it(jailed: Sandbox) -> None:
    with jailed.session() as session:
        session.run("open('f', 'w').write('1')")
        with session.branch() as branch:
            home = value(branch, "import os\nos.environ['HOME']")
            assert value(session, f"import os\nos.listdir({home})") == "['f']"
        assert value(session, f"os.path.exists({home}) and os.listdir({home})") in ("False", "[]")


@pytest.mark.parametrize(
    "left", ["pass", "os.unlink('f')", "os.unlink('f'); os.rmdir(os.environ['HOME'])"]
)
def test_a_process_that_holds_files_of_a_branch_ends_with_the_branch(
    jailed: Sandbox, left: str
) -> None:
    with jailed.session() as session:
        session.run("import os")
        session.branch().close()
        init = psutil.Process(init_pid(session))
        before = len(init.children())
        for _ in range(3):
            with session.branch() as branch:
                assert branch.run("open('f', 'w').write('x')").ok
                assert branch.run(left).ok
                assert branch.run("1").ok
        eventually(lambda: len(init.children()) <= before)


def test_a_failed_branch_is_no_second_worker(session: Session) -> None:
    spoilt = "class Child(Popen):\n    @property\n    def __dict__(self): 1 / 0"
    session.run(f"from subprocess import Popen\n{spoilt}\nx, child = 1, Child(['sleep', '99'])")
    try:
        branch = session.branch()
    except SandboxError:  # it had ended before the host was notified
        pass
    else:
        with branch:
            outcome = branch.run("x")
            assert (outcome.ok, outcome.state) == (False, "restarted")
            assert value(branch, "'x' in dir()") == "False"
    assert value(session, "x") == "1"


def test_a_hundred_branches_one_after_the_other_leave_nothing(jailed: Sandbox) -> None:
    with jailed.session() as session:
        session.run("n = 0")
        session.branch().close()
        init = psutil.Process(init_pid(session))

        def held() -> tuple[int, int, int]:
            gc.collect()
            return descriptors(), init.num_fds(), len(init.children())

        before = held()
        for number in range(100):
            with session.branch() as branch:
                assert value(branch, f"n += {number}\nn") == str(number)
        comes_to_at_most(before, held)
        assert value(session, "n") == "0"


def test_two_sessions_branch_at_once(sandbox: Sandbox) -> None:
    def grow(number: int) -> list[str | None]:
        with sandbox.session() as session:
            session.run(f"n = {number}")
            seen = []
            for _ in range(5):
                with session.branch() as branch:
                    seen.append(value(branch, "n"))
            return seen

    with ThreadPoolExecutor() as pool:
        assert list(pool.map(grow, range(4))) == [[str(number)] * 5 for number in range(4)]


def test_a_closed_session_has_no_branches(jailed: Sandbox) -> None:
    session = jailed.session()
    session.close()
    with pytest.raises(SessionClosed):
        session.branch()


# ── asynchronously ────────────────────────────────────────────────────────────────────────────


def test_async_branches_run_side_by_side() -> None:
    async def scenario() -> None:
        async with AsyncSandbox(isolation="jailed") as sandbox, sandbox.session() as session:
            await session.run("n = 1")
            branches = [await session.branch(seed=seed) for seed in range(3)]
            outcomes = await asyncio.gather(
                *(branch.run(f"n += {i}\nn") for i, branch in enumerate(branches))
            )
            assert [outcome.value for outcome in outcomes] == ["1", "2", "3"]
            for branch in branches:
                await branch.close()
            assert (await session.run("n")).value == "1"

    asyncio.run(scenario())


def test_a_cancelled_branch_leaves_the_session_and_nothing_else() -> None:
    async def scenario() -> None:
        async with (
            AsyncSandbox(isolation="jailed", branches=1) as sandbox,
            sandbox.session() as session,
        ):
            await session.run("n = 1")
            before = descriptors()
            for turns in range(12):  # of the loop, after which it is cancelled
                task = asyncio.create_task(session.branch())
                for _ in range(turns):
                    await asyncio.sleep(0)
                task.cancel()
                try:
                    branch = await task
                except asyncio.CancelledError:
                    pass
                else:
                    await branch.close()
            branch = await session.branch()
            assert (await branch.run("n")).value == "1"
            await branch.close()
            assert (await session.run("n")).value == "1"
            gc.collect()
            # The epoll descriptors of sessions end with them, and the loop's are those of before.
            comes_to_at_most((before,), lambda: (descriptors(),))

    asyncio.run(scenario())
