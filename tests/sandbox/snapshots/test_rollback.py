"""`Session.rollback`: cells undone by their number, files with them."""

from __future__ import annotations

import asyncio
import os
import threading

import psutil
import pytest

from repl_sandbox import (
    AsyncSandbox,
    Raised,
    Sandbox,
    SandboxError,
    Session,
    SessionBusy,
    SessionClosed,
)
from tests.internals import init_pid, worker_pid
from tests.waiting import eventually


def numbered(session: Session, cells: int) -> None:
    """`cells` cells, each of which sets n, and a file, to its number."""
    for number in range(1, cells + 1):
        assert session.run(f"n = {number}\nwith open('n', 'w') as f: f.write('{number}')").ok


@pytest.mark.parametrize("cells", [1, 2, 3])
def test_a_number_of_cells_is_undone(copied: Session, cells: int) -> None:
    numbered(copied, 5)
    assert copied.rollback(cells) == ()
    assert copied.run("n, open('n').read()").value == f"({5 - cells}, '{5 - cells}')"


def test_undoing_again_goes_further_back(copied: Session) -> None:
    numbered(copied, 5)
    for left in (4, 3, 2):
        assert copied.rollback() == ()
        assert copied.get("n") == left


def test_undone_cells_can_be_replaced_by_others(copied: Session) -> None:
    numbered(copied, 2)
    for branch in range(10):
        copied.run(f"n = {branch + 10}")
        copied.rollback()
        assert copied.run("n").value == "2"
        copied.rollback()
    assert copied.get("n") == 2


def test_all_cells_are_undone(copied: Session) -> None:
    numbered(copied, 2)
    copied.rollback(2)
    assert isinstance(copied.run("n"), Raised)
    assert copied.run("import os; os.listdir()").value == "[]"


@pytest.mark.parametrize("length", [1, 100_000])  # a large one is no part of the first message
def test_variables_set_before_the_first_cell_remain_when_all_cells_are_undone(
    copied: Session, length: int
) -> None:
    copied.set("text", "c" * length)
    copied.files.put("given", b"by the host")
    copied.run("text = n = 1\nopen('given', 'w').close()")
    copied.rollback()
    assert copied.run("len(text), open('given').read()").value == f"({length}, 'by the host')"
    assert isinstance(copied.run("n"), Raised)


def test_a_variable_set_after_a_cell_is_undone_with_the_cell(copied: Session) -> None:
    numbered(copied, 1)
    copied.set("text", "context")
    copied.files.put("given", b"by the host")
    copied.run("del text\nimport os; os.unlink('given')")
    copied.rollback()
    assert copied.run("text, open('given').read()").value == "('context', 'by the host')"


@pytest.mark.parametrize(
    ("cells", "error", "says"),
    [
        (0, ValueError, "at least 1"),
        (-1, ValueError, "at least 1"),
        (4, ValueError, "history=4"),
        (3, ValueError, "2 cells"),
        (True, TypeError, "n must be an int"),
        ("1", TypeError, "n must be an int"),
        (1.0, TypeError, "n must be an int"),
        (None, TypeError, "n must be an int"),
    ],
)
def test_an_invalid_number_is_named_and_changes_nothing(
    copied: Session, cells: object, error: type[Exception], says: str
) -> None:
    numbered(copied, 2)
    with pytest.raises(error, match=says):
        copied.rollback(cells)  # type: ignore[arg-type]
    assert copied.run("n").value == "2"


def test_a_cell_that_raised_can_be_undone_as_well(copied: Session) -> None:
    copied.run("x = []")
    assert isinstance(copied.run("x.append(1)\n1 / 0"), Raised)
    copied.rollback()
    assert copied.run("x").value == "[]"


def test_a_cell_that_died_is_undone_already(copied: Session) -> None:
    numbered(copied, 2)
    copied.run("import os\nn = 'lost'\nos._exit(1)")
    copied.rollback()
    assert copied.get("n") == 1


def test_a_session_that_died_between_cells_can_be_rolled_back(copied: Session) -> None:
    numbered(copied, 2)
    assert copied.get("n") == 2  # answered once the snapshot has been taken
    worker = psutil.Process(worker_pid(copied))
    worker.kill()
    psutil.wait_procs([worker], timeout=60)
    copied.rollback()
    assert copied.get("n") == 1


def test_an_init_that_does_not_answer_is_an_error_and_leaks_no_descriptor(
    copied: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbered(copied, 2)
    assert copied.get("n") == 2  # what the host holds of an idle session
    monkeypatch.setattr("repl_sandbox.session.recovery.REVIVE_TIMEOUT", 0.1)
    before = len(os.listdir("/proc/self/fd"))
    init = psutil.Process(init_pid(copied))
    init.suspend()
    with pytest.raises(SandboxError, match="init does not answer"):
        copied.rollback()
    init.resume()
    eventually(lambda: len(os.listdir("/proc/self/fd")) <= before)


def test_an_answer_of_an_undone_cell_stays(recovering: Sandbox) -> None:
    with recovering.session(answers="strict") as session:
        assert [answer.value for answer in session.run("x = FINAL(1)").answers] == [1]
        session.rollback()
        assert session.run("'x' in globals()").value == "False"


def test_no_rollback_while_a_cell_runs(recovering: Sandbox) -> None:
    begun, end = threading.Event(), threading.Event()

    def wait() -> None:
        begun.set()
        end.wait(60)

    with recovering.session(host={"wait": wait}) as session:
        session.run("x = 1")
        thread = threading.Thread(target=session.run, args=("wait()",))
        thread.start()
        assert begun.wait(60)
        with pytest.raises(SessionBusy):
            session.rollback()
        end.set()
        thread.join()
        session.rollback()
        assert session.get("x") == 1


def test_a_closed_session_is_not_rolled_back(recovering: Sandbox) -> None:
    session = recovering.session()
    session.run("x = 1")
    session.close()
    with pytest.raises(SessionClosed):
        session.rollback()


def test_a_rollback_returns_the_lost_resources(copied: Session) -> None:
    copied.run(
        "import threading\nthreading.Thread(target=threading.Event().wait, name='t').start()"
    )
    copied.run("x = 1")
    assert copied.rollback() == ("thread 't'",)


def test_history_0_recovers_without_rollbacks() -> None:
    with Sandbox(history=0, isolation="jailed") as sandbox, sandbox.session() as session:
        session.run("import os\nx = 1")
        with pytest.raises(ValueError, match="history=1"):
            session.rollback()
        assert session.run("os._exit(1)").state == "rolled_back"
        assert session.get("x") == 1


def test_a_missing_snapshot_is_an_error_and_nothing_is_undone(
    recovering: Sandbox,
) -> None:
    with recovering.session() as session:
        numbered(session, 1)
        # So many processes that there is no room for a snapshot of the worker, and the last one
        # ends with the cell.
        if session.isolation.tier != "jailed":
            pytest.skip("there the watchdog ends a session of too many processes")
        session.run(
            "import os, signal\nchildren = []\ntry:\n"
            "    while True:\n        pid = os.fork()\n"
            "        if not pid: signal.pause()\n        children.append(pid)\n"
            "except OSError: pass"
        )
        session.run("for pid in children: os.kill(pid, 9), os.waitpid(pid, 0)\nlast = 1")
        with pytest.raises(SandboxError, match="there is no snapshot from before"):
            session.rollback()
        assert session.get("last") == 1
        assert session.rollback(2) == ()
        assert session.get("n") == 1


def test_asynchronous_sessions_are_rolled_back() -> None:
    async def episode() -> tuple[object, ...]:
        async with AsyncSandbox(isolation="jailed") as sandbox, sandbox.session() as session:
            await session.run("n = 1")
            await session.run("n = 2")
            lost = await session.rollback()
            with pytest.raises(ValueError, match="n must be at least 1"):
                await session.rollback(0)
            return lost, await session.get("n")

    assert asyncio.run(episode()) == ((), 1)
