"""Children that the host forks: they can neither use nor harm its sessions."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys

import pytest

from repl_sandbox import Sandbox, SandboxClosed
from tests.security.ends.watched_hosts import family, host, watched
from tests.waiting import LONG


def test_a_child_that_the_host_forks_can_do_nothing_to_shared_templates() -> None:
    with Sandbox(isolation="jailed") as parent, parent.with_shared(x=1) as made:
        child = os.fork()
        if child == 0:
            status = 1
            with contextlib.suppress(BaseException):
                try:
                    made.session()
                except SandboxClosed:
                    made.close()
                    parent.close()
                    status = 0
            os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        with made.session() as session:
            assert session.run("x").value == "1"


FORKED = """
import os, sys
from repl_sandbox import Sandbox, SandboxClosed, SessionClosed

sandbox = Sandbox()
session = sandbox.session(host={{"double": lambda x: 2 * x}})
assert session.run("x = double(21)").ok
child = os.fork()
if child == 0:
    refused = 0
    for use, error in (
        (lambda: session.run("x"), SessionClosed),
        (lambda: session.set("x", 1), SessionClosed),
        (lambda: session.isolation, SessionClosed),
        (session.interrupt, SessionClosed),
        (sandbox.session, SandboxClosed),
    ):
        try:
            use()
        except error:
            refused += 1
    {end}
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 5, status
print(session.run("x").value, sandbox.session().run("1").value)
"""


@pytest.mark.parametrize(
    "end",
    [
        "os._exit(refused)",
        "sys.exit(refused)",
        "session.close(); sandbox.close(); os._exit(refused)",
    ],
)
def test_a_forked_child_of_the_host_can_neither_use_nor_harm_its_sessions(end: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKED.format(end=end)],
        capture_output=True,
        text=True,
        timeout=LONG,
        check=False,
    )
    assert done.stdout == "42 1\n", done.stderr


HELD = """
import os, signal
from repl_sandbox import Sandbox

with Sandbox() as sandbox, sandbox.session() as session, session.branch() as branch:
    # As another thread may hold them when this one forks; the child has no such thread.
    with sandbox._lock, sandbox._lifecycle.watchdog._lock:
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            for handle in (branch, session, sandbox):
                handle.close()
            os._exit(0)
    _, status = os.waitpid(child, 0)
    print(os.waitstatus_to_exitcode(status), branch.run("1").value, session.run("2").value)
"""


def test_a_forked_child_closes_descriptors_used_by_threads_of_the_host() -> None:
    """It waits for no lock, and ends no branch of its parent's."""
    done = subprocess.run(
        [sys.executable, "-c", HELD], capture_output=True, text=True, timeout=LONG, check=False
    )
    assert done.stdout == "0 1 2\n", done.stderr


# The host waits for its forked child during a call; its cell goes on meanwhile.
AMID = """
import os, signal, sys
from repl_sandbox import Sandbox, SessionClosed

children = []

def fork(*_):
    if children:
        return
    children.append(os.fork())
    if children == [0]:
        signal.alarm(60)
        {end}
    else:
        children.append(os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1]))

def told(stream, text):
    {told}

signal.signal(signal.SIGUSR1, fork)
with Sandbox() as sandbox, sandbox.session(host={{"double": lambda x: 2 * x}}) as session:
    try:
        outcome = session.run("x = 1\\nprint('on', flush=True)\\ndouble(21)", on_output=told)
    except SessionClosed:
        if children == [0]:
            os._exit(5)  # it went on, and was told
        raise
    print(children[1:], outcome.value, outcome.stdout.strip(), session.run("x").value)
"""


@pytest.mark.parametrize(
    ("end", "status"),
    [("return", 5), ("sys.exit(7)", 7), ("raise ValueError('of the child')", 1)],
    ids=["goes on", "exits", "raises"],
)
@pytest.mark.parametrize(
    "told", ["fork()", "os.kill(os.getpid(), signal.SIGUSR1)"], ids=["on_output", "signal"]
)
def test_a_child_forked_during_a_cell_takes_no_part_in_it(told: str, end: str, status: int) -> None:
    """It has the frames of the call, and the descriptors belong to its parent."""
    done = subprocess.run(
        [sys.executable, "-c", AMID.format(told=told, end=end)],
        capture_output=True,
        text=True,
        timeout=LONG,
        check=False,
    )
    assert done.stdout == f"[{status}] 42 on 1\n", done.stderr


ON_A_LOOP = """
import asyncio, os, signal
from repl_sandbox import AsyncSandbox

async def begin():
    await sandbox.start()
    session = await sandbox.session(host={"double": lambda x: 2 * x})
    await session.run("x = 21")
    return session

async def leave():
    await session.close()
    await sandbox.close()

async def end():
    try:
        # Its call comes to no loop that does not listen: then this runs out of time.
        print((await session.run("double(x)")).value)
    finally:
        await leave()

sandbox = AsyncSandbox()
with asyncio.Runner() as runner:
    session = runner.run(begin())
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        asyncio.run(leave())
        os._exit(5)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    runner.run(end())
"""


def test_a_forked_child_closes_what_was_opened_on_its_parents_loop() -> None:
    """The two processes share the loop's selector, which stays in use by the parent."""
    done = subprocess.run(
        [sys.executable, "-c", ON_A_LOOP], capture_output=True, text=True, timeout=LONG, check=False
    )
    assert done.stdout == "5\n42\n", done.stderr


def test_a_surviving_forked_child_keeps_no_session_alive() -> None:
    """It inherited the descriptors by which zygote and sessions detect the end of the host."""
    end = (
        "child = os.fork()\nif child == 0: signal.pause()\nprint(child, flush=True)\nsignal.pause()"
    )
    with host(end) as process, watched(family(process)) as watch:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("\n")
        process.stdin.flush()
        child = int(process.stdout.readline())
        try:
            process.kill()
            assert watch.left() == set()
        finally:
            os.kill(child, signal.SIGKILL)
