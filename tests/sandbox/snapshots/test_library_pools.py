"""Libraries with threads or processes of their own, after a death, a rollback and in a branch.

With REPL_TEST_LIBRARIES (`make test-libraries`) those too that are no dependency of the tests.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext

import pytest

from repl_sandbox import Finished, Limits, Raised, Sandbox, Session
from tests.limits import PATIENT
from tests.sandbox.snapshots.library_programs import IN_SUITE, OTHERS, Program

_SENTENCE = "polars lost its threads when the session was restored; restart the session"
_POLARS = """
import os
import polars as pl
frame = pl.DataFrame({"group": [1, 1, 2], "value": [1, 2, 3]})
grouped = frame.group_by("group", maintain_order=True).agg(pl.col("value").sum()).rows()
grouped
"""
_QUERIES = (
    "frame.group_by('group').agg(pl.col('value').sum())",
    "frame.lazy().collect()",
    "frame.sort('value')",
    "frame['value'].sort()",
    "pl.concat([frame, frame])",
    "frame.write_csv('frame.csv')",
    "frame + frame",
    "query(frame)",
)


@pytest.fixture(scope="module")
def jailed() -> Iterator[Sandbox]:
    limits = Limits(timeout=PATIENT.timeout, memory="2GiB", processes=100)
    with Sandbox(isolation="jailed", limits=limits) as sandbox:
        yield sandbox


def _died(session: Session) -> AbstractContextManager[Session]:
    assert session.run("import os; os._exit(1)").state == "rolled_back"
    return nullcontext(session)


def _rolled_back(session: Session) -> AbstractContextManager[Session]:
    session.run("later = 1")
    session.rollback()
    return nullcontext(session)


_PROGRAMS = IN_SUITE + (OTHERS if os.environ.get("REPL_TEST_LIBRARIES") else ())
_RESTORES = [_died, _rolled_back, Session.branch]
Restore = Callable[[Session], AbstractContextManager[Session]]


@pytest.mark.parametrize("restore", _RESTORES)
@pytest.mark.parametrize("program", _PROGRAMS, ids=lambda program: program.name)
def test_a_library_begins_anew_in_each_process_that_takes_over(
    jailed: Sandbox, program: Program, restore: Restore
) -> None:
    with jailed.session() as session:
        assert session.run(program.setup).ok
        for _ in range(2):
            before = session.run(program.use)
            assert (type(before), before.stdout) == (Finished, program.output), before
            with restore(session) as restored:
                after = restored.run(program.use)
                assert (type(after), after.stdout) == (Finished, program.output), after


@pytest.mark.parametrize("restore", _RESTORES)
def test_a_library_that_cannot_begin_anew_raises_instead_of_waiting(
    jailed: Sandbox, restore: Restore
) -> None:
    with jailed.session() as session:
        assert session.run(_POLARS).value == "[(1, 3), (2, 3)]"
        session.run("from polars import collect_all\nquery = pl.DataFrame.unique")
        with restore(session) as restored:
            for query in _QUERIES:
                outcome = restored.run(query)
                assert isinstance(outcome, Raised), query
                assert (outcome.error.type, outcome.error.message) == ("RuntimeError", _SENTENCE)
                assert outcome.state == "kept"
            # The data can still be read, and saved by other means.
            assert restored.run("frame.rows(), frame['value'].to_list(), grouped").value == (
                "([(1, 1), (1, 2), (2, 3)], [1, 2, 3], [(1, 3), (2, 3)])"
            )
            assert "shape: (3, 2)" in str(restored.run("frame").value)


def test_lost_threads_are_named_by_their_library(jailed: Sandbox) -> None:
    with jailed.session() as session:
        session.run(_POLARS)
        lost = session.run("os._exit(1)").lost
        assert "the threads of polars, whose next call raises" in lost
        # They are not lost a second time.
        assert not any("polars" in name for name in session.run("os._exit(1)").lost)
    with jailed.session() as session:
        session.run(_POLARS)
        with session.branch() as branch:
            assert "the threads of polars, whose next call raises" in branch.lost


def test_a_library_whose_threads_did_not_run_yet_is_not_lost(jailed: Sandbox) -> None:
    with jailed.session() as session:
        session.run("import os, polars")
        assert not any("polars" in name for name in session.run("os._exit(1)").lost)
        assert session.run(_POLARS).value == "[(1, 3), (2, 3)]"


def test_a_state_before_the_threads_has_none_to_lose(jailed: Sandbox) -> None:
    with jailed.session() as session:
        session.run("before = 1")
        session.run(_POLARS)
        assert session.rollback() == ()
        assert session.run(_POLARS).value == "[(1, 3), (2, 3)]"


def test_threads_of_unknown_libraries_have_the_names_that_the_kernel_knows(
    jailed: Sandbox,
) -> None:
    code = """
import ctypes, os, threading
libc, thread, named = ctypes.CDLL(None), ctypes.c_ulong(), threading.Event()

@ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
def wait(_):
    libc.prctl(15, b"decoder-1")
    named.set()
    libc.pause()

libc.pthread_create(ctypes.byref(thread), None, wait, None)
named.wait()
"""
    with jailed.session() as session:
        assert session.run(code).value == "True"
        for _ in range(2):  # again, because it may be the reason of the second death
            lost = session.run("os._exit(1)").lost
            (named,) = (name for name in lost if "C code" in name)
            assert named.startswith(
                "threads of C code named 'decoder-1', for which a call may wait"
            )
        assert session.run("1").value == "1"


@pytest.mark.parametrize(
    ("setup", "wait"),
    [
        ("from multiprocessing import Pool\npool = Pool(1)", "result.get()"),
        ("from multiprocessing.pool import ThreadPool\npool = ThreadPool(1)", "result.get()"),
        (
            "from concurrent.futures import ProcessPoolExecutor\npool = ProcessPoolExecutor(1)\n"
            "pool.apply_async = lambda f, a: pool.submit(f, *a)",
            "result.result()",
        ),
        (
            "from concurrent.futures import ThreadPoolExecutor\npool = ThreadPoolExecutor(1)\n"
            "pool.apply_async = lambda f, a: pool.submit(f, *a)",
            "result.result()",
        ),
    ],
    ids=["Pool", "ThreadPool", "ProcessPoolExecutor", "ThreadPoolExecutor"],
)
def test_work_under_way_is_lost_with_an_exception_and_the_pool_works_on(
    jailed: Sandbox, setup: str, wait: str
) -> None:
    with jailed.session() as session:
        # Before there are processes, which have the descriptors and functions from before them.
        session.run(
            "import os, time\nreading, writing = os.pipe()\n"
            "def work():\n    os.write(writing, b'x')\n    time.sleep(999)"
        )
        session.run(setup)
        assert session.run("result = pool.apply_async(work, ())\nos.read(reading, 1)").ok
        session.run("os._exit(1)")
        outcome = session.run(wait)
        assert isinstance(outcome, Raised), outcome
        assert outcome.error.message == (
            "the work was lost when the session was restored; submit it again"
        )
        assert session.run("list(pool.map(abs, [-1, -2]))").value == "[1, 2]"
        assert session.run("del pool, result\nimport gc; gc.collect(); 1").stderr == ""
