"""Branches of a live session: what they have, what they do not share, and how they end."""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import select
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from repl_sandbox import (
    AsyncSandbox,
    Finished,
    Killed,
    Limits,
    Sandbox,
    SandboxError,
    Session,
    SessionClosed,
    TimedOut,
)
from repl_sandbox.types import Answer
from tests.waiting import eventually

TIERS = ["jailed", "confined", "process"]
LIMITS = Limits(timeout=60)
SECONDS = 60  # for what comes in milliseconds where there is a processor to be had
CRASH = "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)"


@pytest.fixture(scope="module", params=TIERS)
def sandbox(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    tier = request.param
    python = None if tier == "jailed" else request.getfixturevalue("open_python")
    with Sandbox(isolation=tier, python=python, limits=LIMITS) as sandbox:
        yield sandbox


@pytest.fixture(scope="module")
def jailed() -> Iterator[Sandbox]:
    with Sandbox(isolation="jailed", limits=LIMITS, branches=3) as sandbox:
        yield sandbox


def descriptors() -> int:
    """How many this process holds: the fewest of many looks, for the watchdog opens some too."""
    return min(len(os.listdir("/proc/self/fd")) for _ in range(100))


def comes_to_at_most(before: tuple[int, ...], held: Callable[[], tuple[int, ...]]) -> None:
    """Nothing of what `held` counts has become more.

    Counting is repeated until it settles: the watchdog may keep a descriptor open while it has no
    processor, and an earlier test's end may come at any moment.
    """
    eventually(lambda: all(now <= then for now, then in zip(held(), before, strict=True)))


def value(session: Session, code: str) -> str | None:
    """The value that a cell shows."""
    outcome = session.run(code)
    assert isinstance(outcome, Finished), outcome
    return outcome.value


# ── what a branch has ─────────────────────────────────────────────────────────────────────────


def test_a_branch_has_the_namespace_and_goes_on_apart(session: Session) -> None:
    session.run(
        "import json\nn, rows = 1, [1]\ndef add(k):\n    global n\n    n += k\n    return n"
    )
    with session.branch() as branch:
        assert branch.lost == ()
        assert value(branch, "rows.append(2)\n(add(10), json.dumps(rows))") == "(11, '[1, 2]')"
        assert value(session, "(add(1), rows)") == "(2, [1])"
        assert value(branch, "(n, rows, __name__)") == "(11, [1, 2], '__main__')"


def test_names_of_one_file_are_names_of_one_in_a_branch(session: Session) -> None:
    session.run("import os\nos.mkdir('in')\nopen('a', 'w').close()\nos.link('a', 'in/b')")
    with session.branch() as branch:
        assert branch.lost == ()
        assert value(branch, "open('a', 'w').write('new')\nopen('in/b').read()") == "'new'"
        assert value(branch, "os.stat('a').st_nlink") == "2"
        assert value(session, "open('a').read()") == "''"


def test_a_branch_with_open_files_recovers(session: Session) -> None:
    session.run("held = [open(str(n), 'w+') for n in range(20)]\nx = 1")
    with session.branch() as branch:
        assert branch.run("open('new', 'w').close()\nx = 2").stderr == ""
        assert value(branch, "[file.read() for file in held] == [''] * 20") == "True"
        outcome = branch.run("import os\nos._exit(1)")
        assert (outcome.state, outcome.lost) == ("rolled_back", ())
        assert value(branch, "x") == "2"


def test_a_branch_of_a_branch_has_the_files_that_are_open(session: Session) -> None:
    """Of what is ours nothing is at their numbers."""
    session.run("held = [open(str(n), 'w+') for n in range(20)]")
    with session.branch() as branch, branch.branch() as inner:
        assert (branch.lost, inner.lost) == ((), ())
        assert value(inner, "[file.write('x') for file in held] == [1] * 20") == "True"
        assert value(inner, "[file.close() for file in held] == [None] * 20") == "True"


def test_a_file_that_is_mapped_is_the_one_it_was_and_this_is_said(session: Session) -> None:
    if session.isolation.tier == "confined":
        pytest.skip("a copy in this tier cannot see what it has mapped")
    session.run(
        "import mmap\nfile = open('mapped', 'w+b')\nfile.write(b'0' * 10)\nfile.flush()\n"
        "mapped = mmap.mmap(file.fileno(), 0)"
    )
    with session.branch() as branch, branch.branch() as inner:
        for each in (branch, inner):
            (lost,) = each.lost
            assert lost.startswith("shared memory") and "mapped" in lost, lost


def test_a_branch_has_what_was_set_last_and_the_outputs_so_far(session: Session) -> None:
    session.run("print('before')")
    session.set("late", "x" * 100_000)
    with session.branch() as branch:
        assert branch.get("late") == "x" * 100_000
        branch.run("print('branch')")
        session.run("print('original')")
        assert value(branch, "(str(_out[1]), str(_out[2]))") == r"('before\n', 'branch\n')"
        assert value(session, "(str(_out[1]), str(_out[2]))") == r"('before\n', 'original\n')"


def test_a_session_that_ran_nothing_can_branch(session: Session) -> None:
    with session.branch() as branch:
        assert value(branch, "6 * 7") == "42"
    assert value(session, "6 * 7") == "42"


def test_a_session_whose_standard_streams_are_closed_can_branch(session: Session) -> None:
    """Descriptors given to the branch must not occupy the numbers of its own streams."""
    session.run("import os\nfor fd in range(3): os.close(fd)\nx = 1")
    with session.branch() as branch:
        outcome = branch.run("print('told')\nx")
        assert (outcome.stdout, outcome.value) == ("told\n", "1")


def test_random_numbers_go_on_or_begin_at_a_seed(session: Session) -> None:
    session.run("import random\nrandom.seed(5)\nrandom.random()")
    with session.branch() as same, session.branch(seed=7) as seeded, session.branch(seed=7) as twin:
        first = value(session, "random.random()")
        assert value(same, "random.random()") == first
        assert value(seeded, "random.random()") == value(twin, "random.random()") != first


def test_a_branch_has_files_of_its_own(session: Session) -> None:
    session.run(
        "import os\nos.makedirs('sub/deep')\nopen('sub/f', 'w').write('old')\nos.chdir('sub')\n"
        "os.symlink('f', 'link')\nlog = open('log', 'a+')\nlog.write('one')\nlog.flush()"
    )
    with session.branch() as branch:
        assert value(branch, "(open('f').read(), open('link').read())") == "('old', 'old')"
        branch.run("open('f', 'w').write('new')\nlog.write(' two')\nlog.flush()")
        session.run("log.write(' three')\nlog.flush()")
        assert value(branch, "(open('f').read(), open('log').read())") == "('new', 'one two')"
        assert value(session, "(open('f').read(), open('log').read())") == "('old', 'one three')"
        assert value(branch, "os.getcwd() == os.path.join(os.environ['HOME'], 'sub')") == "True"
        branch.files.put("given", b"1")
        assert "given" not in {file.path for file in session.files.list()}
        assert "sub/f" in {file.path for file in branch.files.list()}
        assert branch.files.get("sub/f") == b"new"
        assert session.files.get("sub/f") == b"old"


@pytest.mark.parametrize(("files", "size"), [(1, 1 << 20), (1, (1 << 20) + 1), (63, 1), (70, 1)])
def test_files_come_along_however_many_and_large(session: Session, files: int, size: int) -> None:
    session.run(
        "import os\nos.mkdir('d')\n"
        f"for i in range({files}): open(f'd/{{i}}', 'w').write('x' * {size})\n"
        "os.symlink('d/0', 'link')"
    )
    with session.branch() as branch:
        assert branch.lost == ()
        assert value(branch, "len(os.listdir('d'))") == str(files)
        assert value(branch, "len(open('link').read()), os.readlink('link')") == f"({size}, 'd/0')"
        branch.run("open('d/0', 'w').close()")
    assert value(session, "len(open('link').read())") == str(size)


def test_threads_children_and_pipes_stay_and_are_named(session: Session) -> None:
    session.run(
        "import os, subprocess, threading\nheld = threading.Event()\n"
        "threading.Thread(target=held.wait, name='waits', daemon=True).start()\n"
        "child = subprocess.Popen(['/bin/sleep', '60']) if os.path.exists('/bin/sleep') else None\n"
        "ends = os.pipe()"
    )
    with session.branch() as branch:
        assert "thread 'waits'" in branch.lost
        assert sum("a pipe" in name for name in branch.lost) == 2
        assert value(branch, "threading.active_count()") == "1"
        assert value(session, "threading.active_count()") == "2"
        assert value(session, "child is None or child.poll() is None") == "True"
        branch.run(CRASH)
    assert value(session, "child is None or child.poll() is None") == "True"


def test_children_alone_stay_and_are_named(session: Session) -> None:
    started = session.run(
        "import os, subprocess\nchild = subprocess.Popen(['/bin/sleep', '60'])"
        " if os.path.exists('/bin/sleep') else None\nchild and child.pid"
    )
    with session.branch() as branch:
        named = (f"child process {started.value}, which was ended",) if started.value else ()
        assert branch.lost == named
        assert value(branch, "child and child.poll()") == ("-9" if started.value else None)
    assert value(session, "child is None or child.poll() is None") == "True"


def test_host_functions_and_answers_are_apart(sandbox: Sandbox) -> None:
    taken: list[tuple[str, object]] = []

    def keep(who: str, answer: Answer) -> None:
        taken.append((who, answer.value))

    with sandbox.session(
        host={"who": lambda: "original"},
        answers="strict",
        on_answer=lambda answer: keep("original", answer),
    ) as session:
        own = {"who": lambda: "branch"}
        with (
            session.branch(host=own, on_answer=lambda answer: keep("branch", answer)) as branch,
            session.branch() as same,
        ):
            assert value(branch, "who()") == "'branch'"
            assert value(session, "who()") == value(same, "who()") == "'original'"
            branch.run("FINAL(1)")
            session.run("FINAL(2)")
        with pytest.raises(ValueError, match="who"):
            session.branch(host={"other": print})
        with pytest.raises(TypeError, match="seed"):
            session.branch(seed="x")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="seed"):
            session.branch(seed=1 << 63)
    assert taken == [("branch", 1), ("original", 2)]


def test_branches_of_branches(session: Session) -> None:
    session.run("path = [0]\nopen('f', 'w').write('0')")
    with session.branch() as one:
        one.run("path.append(1)\nopen('f', 'w').write('1')")
        with one.branch() as two:
            two.run("path.append(2)")
            assert value(two, "(path, open('f').read())") == "([0, 1, 2], '1')"
            one.close()
            session.run("path.append(9)")
            assert value(two, "(path, open('f').read())") == "([0, 1, 2], '1')"
    assert value(session, "(path, open('f').read())") == "([0, 9], '0')"


# ── recovery ──────────────────────────────────────────────────────────────────────────────────


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


def test_what_copies_are_made_with_is_not_lost_with_a_branch(session: Session) -> None:
    for number in range(10):  # from the fifth on a copy is kept up to date, by shared memory
        session.run(f"x = {number}")
    with session.branch() as branch:
        assert branch.lost == ()
        assert value(branch, "x") == "9"


def test_a_word_that_nobody_has_read_is_in_no_branchs_way(session: Session) -> None:
    session.run(
        "import gc, struct\nx = 1\n"
        "copies = next(o for o in gc.get_objects() if type(o).__name__ == 'BranchFork')\n"
        "import select\ncopies._socket.sendall(struct.pack('=Bq', 0, 1))\n"
        "answered = select.select([copies._socket], [], [])"  # as if for files, but it is not read
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


def test_who_cannot_be_looked_at_has_no_branch_until_it_can(session: Session) -> None:
    session.run(
        "import random, threading\nx, random.getstate = random.getstate, None\n"
        "threading.Thread(target=threading.Event().wait, daemon=True).start()"
    )
    with pytest.raises(SandboxError, match="could not be copied"):
        session.branch()
    session.run("random.getstate, x = x, 1")
    with session.branch() as branch:
        assert value(branch, "x") == "1"


def test_a_branch_that_is_refused_leaves_signals_as_they_were() -> None:
    with (
        Sandbox(isolation="jailed", max_sessions=1) as sandbox,
        sandbox.session() as session,
    ):
        session.run("import signal\nsignal.signal(signal.SIGALRM, lambda *a: print('struck'))")
        with pytest.raises(SandboxError):
            session.branch()
        pid = session._core.links.worker_pid
        os.kill(pid, signal.SIGALRM)
        blocked = f"/proc/{pid}/status"

        def is_handled() -> bool:
            status = Path(blocked).read_text()
            return "ShdPnd:\t0000000000000000" in status and "SigPnd:\t0000000000000000" in status

        eventually(is_handled)
        assert session.run("1").stdout == "struck\n"


def test_a_branch_that_is_refused_leaves_no_files(jailed: Sandbox) -> None:
    with jailed.session() as session:
        session.run("import os, resource\nos.makedirs('a/b'); open('a/b/f', 'w').write('1'); x = 1")
        most = value(session, "most = resource.getrlimit(resource.RLIMIT_NPROC); most")
        session.run("resource.setrlimit(resource.RLIMIT_NPROC, (0, most[1]))")
        with pytest.raises(SandboxError, match="no room for another process"):
            session.branch()
        session.run("resource.setrlimit(resource.RLIMIT_NPROC, most)")
        assert value(session, "resource.getrlimit(resource.RLIMIT_NPROC)") == most
        assert value(session, "[name for name in os.listdir('/tmp') if 'branch' in name]") == "[]"
        with session.branch() as branch:
            assert value(branch, "x, open('a/b/f').read()") == "(1, '1')"


def test_code_that_shuts_the_way_of_orders_has_no_branch_and_loses_nothing(
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
    with pytest.raises(SandboxError, match="could not be copied"):
        session.branch()
    assert value(session, "x") == "1"


@pytest.mark.parametrize("times", [1, 2])
def test_a_worker_that_ends_as_it_is_to_fork_costs_no_branch_but_two_do(
    session: Session, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    core = session._core
    tell, shots = core.io.init.tell, []

    def shoot_and_tell(order: dict[str, Any], descriptors: tuple[int, ...] = ()) -> None:
        if order["op"] == "branch" and len(shots) < times:
            shots.append(core.links.worker_pid)
            os.kill(core.links.worker_pid, signal.SIGKILL)
            select.select([core.links.worker], [], [])
        tell(order, descriptors)

    session.run("x = 1")
    with monkeypatch.context() as patch:
        patch.setattr(core.io.init, "tell", shoot_and_tell)
        if times == 1:
            with session.branch() as branch:
                session.run("x += 1")
                assert (value(branch, "x"), value(session, "x")) == ("1", "2")
        else:
            with pytest.raises(SandboxError, match="could not be copied"):
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


# ── limits ────────────────────────────────────────────────────────────────────────────────────


def test_so_many_branches_may_be_open(jailed: Sandbox) -> None:
    with jailed.session() as session:
        open_now = [session.branch() for _ in range(3)]
        with pytest.raises(SandboxError, match="branches=3"):
            session.branch()
        with pytest.raises(SandboxError, match="branches=3"):
            open_now[0].branch()
        open_now.pop().close()
        open_now.append(session.branch())
        for branch in open_now:
            assert value(branch, "1 + 1") == "2"
            branch.close()


def test_one_branch_too_many_costs_nothing() -> None:
    with (
        Sandbox(limits=Limits(timeout=60, grace=0.05), branches=1) as sandbox,
        sandbox.session() as session,
        session.branch(),
    ):
        # A session with threads is copied by fork(3), which runs this: the copy takes its time.
        session.run(
            "import os, threading, time\nawaited = threading.Event()\n"
            "threading.Thread(target=awaited.wait, daemon=True).start()\n"
            "os.register_at_fork(before=lambda: time.sleep(0.5))"
        )
        session.run("x = 3")
        with pytest.raises(SandboxError, match="branches=1"):
            session.branch()
        outcome = session.run("x")
        assert (outcome.value, outcome.state, outcome.lost) == ("3", "kept", ())


def test_a_branch_counts_as_a_session() -> None:
    with (
        Sandbox(isolation="jailed", max_sessions=2) as sandbox,
        sandbox.session() as session,
        session.branch(),
    ):
        with pytest.raises(SandboxError, match="max_sessions=2"):
            session.branch()
        assert sandbox.statistics().open == 2


@pytest.mark.parametrize("refusing", [{"branches": 0}, {"recovery": "restart"}])
def test_a_branch_that_is_refused_does_not_count(refusing: dict[str, Any]) -> None:
    with Sandbox(max_sessions=2, **refusing) as sandbox, sandbox.session() as session:
        for _ in range(2):
            with pytest.raises(SandboxError):
                session.branch()
        sandbox.session().close()


@pytest.mark.parametrize("count", [True, -1, "2"])
def test_branches_is_a_count(count: object) -> None:
    with pytest.raises((TypeError, ValueError), match="branches"):
        Sandbox(branches=count)  # type: ignore[arg-type]


def test_without_copies_there_are_no_branches() -> None:
    with (
        Sandbox(isolation="jailed", recovery="restart") as sandbox,
        sandbox.session() as session,
    ):
        with pytest.raises(SandboxError, match="recovery='snapshot'"):
            session.branch()
        assert value(session, "1 + 1") == "2"


def test_room_is_given_and_taken_back(jailed: Sandbox) -> None:
    with jailed.session() as session:
        group = session._core.links.group
        if group is None:
            pytest.skip("no groups here")
        before = group.limits()
        with session.branch():
            assert group.limits() > before
        assert group.limits() == before


def test_a_host_without_descriptors_says_so_and_loses_none(jailed: Sandbox) -> None:
    with jailed.session() as session:
        session.run("x = 1")
        session.branch().close()
        most = resource.getrlimit(resource.RLIMIT_NOFILE)
        before = descriptors()
        filling: list[int] = []
        try:
            highest = max(map(int, os.listdir("/proc/self/fd")))
            resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 10, most[1]))
            with suppress(OSError):
                while True:
                    filling.append(os.open("/dev/null", os.O_RDONLY))
            for free in range(8):  # of the nine that a branch takes
                for _ in range(free):
                    os.close(filling.pop())
                with pytest.raises(SandboxError, match="Too many open files"):
                    session.branch()
                with suppress(OSError):
                    while True:
                        filling.append(os.open("/dev/null", os.O_RDONLY))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, most)
            for fd in filling:
                os.close(fd)
        gc.collect()
        comes_to_at_most((before,), lambda: (descriptors(),))
        with session.branch() as branch:
            assert value(branch, "x") == "1"


# ── ends ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_they_close_in_any_order(sandbox: Sandbox, order: tuple[int, ...]) -> None:
    def held() -> tuple[int, int]:
        gc.collect()
        return descriptors(), len(psutil.Process().children(recursive=True))

    with sandbox.session() as first:
        first.run("x = 1")  # and what is made for the first session of a sandbox is there
    before = held()
    session = sandbox.session()
    session.run("x = 1\nopen('f', 'w').write('1')")
    folder = session._core.links.folder
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
    # Less, if what earlier tests left was collected meanwhile.
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
def test_who_kept_a_branchs_files_ends_with_it(jailed: Sandbox, left: str) -> None:
    with jailed.session() as session:
        session.run("import os")
        session.branch().close()
        init = psutil.Process(session._core.links.pid)
        before = len(init.children())
        for _ in range(3):
            with session.branch() as branch:
                assert branch.run("open('f', 'w').write('x')").ok
                assert branch.run(left).ok
                assert branch.run("1").ok
        eventually(lambda: len(init.children()) <= before)


def test_a_branch_that_cannot_go_on_is_no_second_worker(session: Session) -> None:
    spoilt = "class Child(Popen):\n    @property\n    def __dict__(self): 1 / 0"
    session.run(f"from subprocess import Popen\n{spoilt}\nx, child = 1, Child(['sleep', '99'])")
    try:
        branch = session.branch()
    except SandboxError:  # it had ended by the time that the host heard of it
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
        init = psutil.Process(session._core.links.pid)

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
