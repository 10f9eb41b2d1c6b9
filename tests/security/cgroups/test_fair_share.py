"""Busy sessions are throttled, and recover once they rest, as seen from outside."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from repl_sandbox import Limits, Raised, Sandbox, Session
from repl_sandbox.host import fair_share
from repl_sandbox.host.cgroup_files import VERSIONS, CgroupRoot, CgroupUnavailable, find
from repl_sandbox.host.fair_share import LONG
from repl_sandbox.native.libc import number
from tests.internals import init_pid, session_core, session_links
from tests.waiting import PATIENCE, eventually

FOUND = find()
BURN = "while True: pass"
# Two children that go on between cells, each in a session of the kernel's own.
LEAVE = (
    "import os\nchildren = []\nfor _ in range(2):\n    children.append(os.fork())\n"
    "    if not children[-1]:\n        os.setsid()\n        while True: pass\n"
)


@pytest.fixture(params=["group", "no group", "confined"])
def sandbox(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, open_python: str
) -> Iterator[Sandbox]:
    if request.param == "group" and not (isinstance(FOUND, CgroupRoot) and FOUND.weighing):
        pytest.skip("no group can be weighed here")
    # Rests are short.
    monkeypatch.setattr(fair_share, "EARNED", 1.0)
    how: dict[str, Any] = {
        "group": {"cgroup": "require"},
        "no group": {"cgroup": "off"},
        "confined": {"isolation": "confined", "python": open_python},
    }[request.param]
    with Sandbox(limits=Limits(timeout=PATIENCE), fair_share=True, **how) as made:
        yield made


def processes(session: Session) -> list[psutil.Process]:
    return psutil.Process(init_pid(session)).children(recursive=True)


def shares(session: Session) -> set[bool]:
    """Whether the session's cgroup, or each of its processes except init, is throttled."""
    group = session_links(session).group
    if group is not None and group.weighted:
        folder, name = VERSIONS[group.version].weight
        weight = int(Path(group.folders[folder], name).read_text())
        return {weight == VERSIONS[group.version].low}
    found = set()
    for process in processes(session):
        with suppress(psutil.NoSuchProcess, ProcessLookupError):
            found.add(os.sched_getscheduler(process.pid) == os.SCHED_BATCH)
    return found


def slices(session: Session) -> set[int]:
    """The time slices of its threads except init's, in nanoseconds, from sched_getattr(2)."""
    call, libc = number("sched_getattr"), ctypes.CDLL(None)
    found = set()
    for process in processes(session):
        with suppress(psutil.NoSuchProcess):
            for thread in process.threads():
                told = ctypes.create_string_buffer(48)
                if not libc.syscall(call, thread.id, told, 48, 0):
                    found.add(int.from_bytes(told.raw[24:32], sys.byteorder))
    return found


def until(true: Callable[[], bool]) -> None:
    eventually(true)


@contextmanager
def burning(session: Session) -> Iterator[None]:
    """The session computes in the block; the machine decides how soon its credit is used up."""
    thread = threading.Thread(target=session.run, args=(BURN,), kwargs={"timeout": 2 * PATIENCE})
    thread.start()
    try:
        yield
    finally:
        while thread.is_alive():
            session.interrupt()
            thread.join(0.01)


def test_a_busy_session_alone_is_throttled_and_recovers(sandbox: Sandbox) -> None:
    with sandbox.session() as burner, sandbox.session() as other:
        assert other.run("1 + 1").value == "2"
        with burning(burner):
            until(lambda: shares(burner) == {True})
            assert shares(other) == {False}
        until(lambda: shares(burner) == {False})
        assert burner.run("1 + 1").value == "2"


def test_daemonized_children_are_throttled_with_their_session_between_cells(
    sandbox: Sandbox,
) -> None:
    with sandbox.session() as burner, sandbox.session() as other:
        burner.run(LEAVE)
        until(lambda: shares(burner) == {True})
        assert shares(other) == {False}
        assert len(processes(burner)) >= 3


@pytest.mark.parametrize("cgroup", ["auto", "off"])
def test_a_throttled_session_runs_in_long_slices_and_recovers(
    cgroup: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether or not anything weighs them here: it needs no privilege."""
    monkeypatch.setattr(fair_share, "EARNED", 1.0)
    limits = Limits(timeout=PATIENCE)
    with (
        Sandbox(limits=limits, fair_share=True, cgroup=cgroup) as sandbox,
        sandbox.session() as burner,
        sandbox.session() as other,
    ):
        burner.run("import threading; threading.Thread(target=threading.Event().wait).start()")
        other.run("1 + 1")
        ordinary = slices(other)
        if ordinary == {0}:
            pytest.skip("this kernel (before 6.12) has slices of one length")
        with burning(burner):
            until(lambda: slices(burner) == {LONG})
        burner.run(LEAVE)  # children have what their parent had
        until(lambda: slices(burner) == {LONG})
        assert slices(other) == ordinary
        burner.run("import os, signal\nfor pid in children: os.kill(pid, signal.SIGKILL)")
        until(lambda: slices(burner) == ordinary)


def test_a_branch_is_throttled_with_its_session(sandbox: Sandbox) -> None:
    with sandbox.session() as session:
        session.run("x = 1")
        with session.branch() as branch:
            branch.run(LEAVE)
            until(lambda: shares(session) == {True})
        until(lambda: shares(session) == {False})
        assert session.run("x").value == "1"


def test_a_session_that_ends_throttled_leaves_no_throttled_cgroup() -> None:
    if not (isinstance(FOUND, CgroupRoot) and FOUND.weighing):
        pytest.skip("no group can be weighed here")

    def is_used_again() -> bool:
        """Unless a process of the first is still counted, when there is another group."""
        with sandbox.session() as burner:  # type: ignore[attr-defined]
            with burning(burner):
                until(lambda: shares(burner) == {True})
            before = session_links(burner).group
        with sandbox.session() as after:  # type: ignore[attr-defined]
            assert shares(after) == {False}
            return session_links(after).group is before

    with Sandbox(fair_share=True, cgroup="require") as sandbox:
        until(is_used_again)


def test_without_fair_share_no_session_is_throttled() -> None:
    with Sandbox() as sandbox, sandbox.session() as session:
        session.run(BURN, timeout=1)
        group = session_links(session).group
        assert group is None or not group.weighted
        assert shares(session) == {False}
        assert LONG not in slices(session)


@pytest.mark.skipif(isinstance(FOUND, CgroupUnavailable), reason="no groups can be made here")
def test_a_cgroup_root_without_weights_still_enforces_the_limits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert isinstance(FOUND, CgroupRoot)
    place = CgroupRoot(FOUND.version, FOUND.folders, FOUND.needs_leaf, weighing="/nowhere")
    monkeypatch.setattr("repl_sandbox.host.template.find", lambda: place)
    if place.version == 2:
        pytest.skip("the folder is that of the limits")
    with Sandbox(fair_share=True, cgroup="require") as sandbox, sandbox.session() as session:
        assert session_links(session).group is not None
        assert not session_links(session).group.weighted


def test_a_session_with_many_processes_keeps_its_share(sandbox: Sandbox) -> None:
    """It may be a fork bomb, and others wait for the locks that its forks hold."""
    with sandbox.session() as burner:
        burner.run(LEAVE)
        until(lambda: shares(burner) == {True})
        burner.run(LEAVE.replace("range(2)", "range(16)"))
        until(lambda: shares(burner) == {False})


@pytest.mark.skipif(isinstance(FOUND, CgroupUnavailable), reason="no groups can be made here")
def test_a_fork_over_the_limit_is_refused_early_and_named() -> None:
    """The resource limit refuses first; the cgroup would refuse after copying."""
    with Sandbox(limits=Limits(processes=8), fair_share=True, cgroup="require") as sandbox:
        with sandbox.session() as session:
            group = session_links(session).group
            assert group is not None
            folder, name = VERSIONS[group.version].refusals
            refusals = Path(group.folders[folder], name)
            before = refusals.read_text()

            def seen(stream: str, text: str) -> None:
                """Once a look at the session has found it full, that is enough."""
                if "full" in text and eventually(
                    lambda: session_core(session).cells.limit_hits.full
                ):
                    session.interrupt()

            outcome = session.run(
                "import os, signal\ntold = False\nwhile True:\n    try:\n"
                "        if not os.fork(): signal.pause()\n"
                "    except OSError:\n"
                "        if not told: print('full', flush=True)\n"
                "        told = True\n",
                timeout=2 * PATIENCE,
                on_output=seen,
            )
            assert isinstance(outcome, Raised)
            assert outcome.limits == ("processes",)
            assert refusals.read_text() == before
            assert session.run("1 + 1").limits == ()
