"""Crashes, time-outs and refused forks of sessions with branches."""

from __future__ import annotations

import os
import select
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from repl_sandbox import Killed, SandboxError, Session, TimedOut
from tests.internals import session_core
from tests.sandbox.session.branches.branching import CRASH, SECONDS
from tests.sandbox.shown_value import value


def test_a_branch_after_a_rollback_and_after_a_crash(session: Session) -> None:
    session.run("x = 1")
    session.run("x = 2")
    session.rollback()
    with session.branch() as branch:
        assert value(branch, "x") == "1"
    session.run("x = 3")
    assert session.run(CRASH).state == "rolled_back"
    with session.branch() as branch:
        assert value(branch, "x") == "3"
    assert value(session, "x") == "3"


def test_a_crash_restores_the_branch_alone(session: Session) -> None:
    session.run("x = 1\nopen('f', 'w').write('1')")
    with session.branch() as branch:
        started = value(session, "import os\nos.getpid()")
        for _ in range(2):  # the first cell of a branch, and the first after a crash
            outcome = branch.run(f"x = 0\nopen('f', 'w').write('0')\n{CRASH}")
            assert isinstance(outcome, Killed)
            assert outcome.state == "rolled_back"
            assert value(branch, "(x, open('f').read())") == "(1, '1')"
        assert value(session, "os.getpid()") == started


def test_a_crash_of_the_original_leaves_its_branches(session: Session) -> None:
    session.run("x = 1\nopen('f', 'w').write('1')")
    with session.branch() as branch:
        branch.run("import os, threading\nx = 2\nopen('f', 'w').write('2')\npid = os.getpid()")
        child = "child = os.fork()\nif not child:\n    import time\n    time.sleep(60)"
        branch.run(child)
        session.run("x = 3\nopen('f', 'w').write('3')")
        assert session.run(f"open('f', 'w').write('4')\n{CRASH}").state == "rolled_back"
        assert value(session, "(x, open('f').read())") == "(3, '3')"
        assert value(branch, "(x, open('f').read(), os.getpid() == pid)") == "(2, '2', True)"
        assert value(branch, "os.waitpid(child, os.WNOHANG)") == "(0, 0)"
        session.rollback()
        assert value(branch, "os.waitpid(child, os.WNOHANG)") == "(0, 0)"
        branch.run("x = 5")
        branch.rollback()
        assert value(branch, "x") == "2"


def test_snapshots_still_work_after_a_branch_ends(session: Session) -> None:
    for number in range(
        10
    ):  # from the fifth cell on a snapshot is kept up to date, in shared memory
        session.run(f"x = {number}")
    with session.branch() as branch:
        assert branch.lost == ()
        assert value(branch, "x") == "9"


def test_an_unread_message_does_not_block_a_branch(session: Session) -> None:
    session.run(
        "import gc, struct\nx = 1\n"
        "snapshots = next(o for o in gc.get_objects() if type(o).__name__ == 'BranchFork')\n"
        "import select\ninit_socket = snapshots._sockets.init_socket\n"
        "init_socket.sendall(struct.pack('=Bq', 0, 1))\n"
        "answered = select.select([init_socket], [], [])"  # as if for files, but it is not read
    )
    for _ in range(3):
        with session.branch() as branch:
            assert value(branch, "x") == "1"


def test_a_session_that_may_open_no_more_files_can_branch(session: Session) -> None:
    session.run(
        "import os\nx, opened = 1, []\ntry:\n    while True: opened.append(open(os.devnull))\n"
        "except OSError: pass"
    )
    with session.branch() as branch:
        assert value(branch, "x, len(opened) > 100, opened[5].read()") == "(1, True, '')"


def test_an_unreadable_process_has_no_branch_until_it_is_readable(session: Session) -> None:
    session.run(
        "import random, threading\nx, random.getstate = random.getstate, None\n"
        "threading.Thread(target=threading.Event().wait, daemon=True).start()"
    )
    with pytest.raises(SandboxError, match="could not be branched"):
        session.branch()
    session.run("random.getstate, x = x, 1")
    with session.branch() as branch:
        assert value(branch, "x") == "1"


def test_code_that_closes_the_control_socket_has_no_branch_and_loses_nothing(
    session: Session,
) -> None:
    session.run(
        "import os, socket\nx = 1\n"
        "found = [int(name) for name in os.listdir('/proc/self/fd')]\n"
        "for fd in sorted(found)[:-1]:\n"  # the last is what the worker speaks on
        "    try: end = socket.socket(fileno=fd)\n"
        "    except OSError: continue\n"
        "    try: end.shutdown(socket.SHUT_RDWR)\n"
        "    except OSError: pass\n"
        "    end.detach()"  # closing it would end the worker
    )
    with pytest.raises(SandboxError, match="could not be branched"):
        session.branch()
    assert value(session, "x") == "1"


@pytest.mark.parametrize("times", [1, 2])
def test_one_worker_that_dies_at_its_fork_is_retried_and_two_fail_the_branch(
    session: Session, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    core = session_core(session)
    send, shots = core.io.init.send, []

    def shoot_and_send(order: dict[str, Any], descriptors: tuple[int, ...] = ()) -> None:
        if order["op"] == "branch" and len(shots) < times:
            shots.append(core.links.worker_pid)
            os.kill(core.links.worker_pid, signal.SIGKILL)
            select.select([core.links.worker], [], [])
        send(order, descriptors)

    session.run("x = 1")
    with monkeypatch.context() as patch:
        patch.setattr(core.io.init, "send", shoot_and_send)
        if times == 1:
            with session.branch() as branch:
                session.run("x += 1")
                assert (value(branch, "x"), value(session, "x")) == ("1", "2")
        else:
            with pytest.raises(SandboxError, match="could not be branched"):
                session.branch()
            assert value(session, "x") == "1"
    assert len(shots) == times


def test_a_timeout_in_one_while_the_other_runs(session: Session) -> None:
    session.run("import time")
    with session.branch() as branch, ThreadPoolExecutor() as pool:
        begun = threading.Event()
        running = pool.submit(
            session.run,
            "print('go', flush=True)\ntotal = 0\nwhile not total: time.sleep(0.01)",
            timeout=5 * SECONDS,
            on_output=lambda stream, text: begun.set(),
        )
        assert begun.wait(SECONDS)
        outcome = branch.run("while True: time.sleep(0.01)", timeout=0.2)
        assert isinstance(outcome, TimedOut)
        # In a cell before, for an interrupt may come before a cell has begun.
        branch.run("from signal import *\npthread_sigmask(SIG_BLOCK, [SIGINT])")
        assert branch.run("while True: time.sleep(9)", timeout=0.2).state == "rolled_back"
        assert not running.done()
        session.interrupt()
        error = running.result(SECONDS).error
        assert error is not None
        assert error.type == "KeyboardInterrupt"
