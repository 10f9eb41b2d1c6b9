"""Threads for what blocks: as many as are open, and the end of the process waits for none."""

from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import wait

import pytest

from repl_env.common.threads import DaemonThreads, start_in_thread
from tests.waiting import LONG, PATIENCE

AT_WORK = """
import threading
from repl_env.common.threads import start_in_thread

at_work = threading.Event()

def work():
    at_work.set()
    threading.Event().wait()

start_in_thread(work)
at_work.wait()
print("ends", flush=True)
"""
FORKED = """
import os, sys
from repl_env.common.threads import start_in_thread

assert start_in_thread(os.getpid).result() == os.getpid()
child = os.fork()
if child == 0:
    sys.exit(5 if start_in_thread(os.getpid).result(120) == os.getpid() else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def said_by(program: str) -> str:
    """Return the output of a separate process that ends by itself."""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=LONG, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_exit_of_the_process_does_not_wait_for_a_daemon_thread() -> None:
    assert said_by(AT_WORK) == "ends\n"


def test_a_forked_child_has_threads_of_its_own() -> None:
    assert said_by(FORKED) == "5\n"


@pytest.mark.parametrize("open_at_once", [3, 20, 7])
def test_calls_that_wait_for_each_other_all_have_a_thread(open_at_once: int) -> None:
    for _ in range(20):
        met = threading.Barrier(open_at_once)
        calls = [start_in_thread(met.wait, PATIENCE) for _ in range(open_at_once)]
        assert sorted(call.result() for call in calls) == list(range(open_at_once))


def test_the_number_of_threads_is_limited_and_all_work_is_done() -> None:
    threads = DaemonThreads(2, "test")
    calls = [threads.submit(threading.get_ident) for _ in range(500)]

    assert not wait(calls, PATIENCE).not_done
    assert len({call.result() for call in calls}) <= 2


def test_work_cancelled_while_queued_is_not_begun() -> None:
    threads, go_on, done = DaemonThreads(1, "test"), threading.Event(), list[str]()
    first = threads.submit(lambda: go_on.wait(PATIENCE))
    second = threads.submit(lambda: done.append("second"))
    third = threads.submit(lambda: done.append("third"))
    assert second.cancel()
    go_on.set()
    third.result(PATIENCE)

    assert first.result()
    assert done == ["third"]
