"""The number of branches, and refused branches."""

from __future__ import annotations

import gc
import os
import resource
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from repl_sandbox import Limits, Sandbox, SandboxError
from tests.internals import session_links, worker_pid
from tests.sandbox.session.branches.branching import comes_to_at_most, descriptors
from tests.sandbox.shown_value import value
from tests.waiting import eventually


def test_a_branch_that_is_refused_leaves_signals_as_they_were() -> None:
    with (
        Sandbox(isolation="jailed", max_sessions=1) as sandbox,
        sandbox.session() as session,
    ):
        session.run("import signal\nsignal.signal(signal.SIGALRM, lambda *a: print('struck'))")
        with pytest.raises(SandboxError):
            session.branch()
        pid = worker_pid(session)
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


# ── limits ────────────────────────────────────────────────────────────────────────────────────


def test_the_number_of_open_branches_is_limited(jailed: Sandbox) -> None:
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


def test_a_refused_branch_leaves_the_session_unchanged() -> None:
    with (
        Sandbox(limits=Limits(timeout=60, grace=0.05), branches=1) as sandbox,
        sandbox.session() as session,
        session.branch(),
    ):
        # A session with threads is copied by fork(3), which runs this hook: the snapshot takes
        # time.
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
def test_branches_must_be_a_count(count: object) -> None:
    with pytest.raises((TypeError, ValueError), match="branches"):
        Sandbox(branches=count)  # type: ignore[arg-type]


def test_without_snapshots_there_are_no_branches() -> None:
    with (
        Sandbox(isolation="jailed", recovery="restart") as sandbox,
        sandbox.session() as session,
    ):
        with pytest.raises(SandboxError, match="recovery='snapshot'"):
            session.branch()
        assert value(session, "1 + 1") == "2"


def test_memory_for_branches_is_added_and_removed(jailed: Sandbox) -> None:
    with jailed.session() as session:
        group = session_links(session).group
        if group is None:
            pytest.skip("no groups here")
        before = group.limits()
        with session.branch():
            assert group.limits() > before
        assert group.limits() == before


def test_a_host_out_of_descriptors_gets_an_error_and_leaks_none(jailed: Sandbox) -> None:
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
