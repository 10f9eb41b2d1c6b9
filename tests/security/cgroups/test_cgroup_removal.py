"""Cgroups that cannot be made, are removed, or belong to ordinary users."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import repl_sandbox.host.template
from repl_sandbox import IsolationError, Limits, Sandbox
from repl_sandbox.host.cgroup_files import CgroupRoot, CgroupUnavailable
from tests.security.cgroups.cgroup_folders import (
    FILL,
    FOUND,
    MIB,
    SMALL,
    added,
    layer,
    needs_groups,
    of,
    take_away,
)
from tests.waiting import LONG, PATIENCE, comes_to


@needs_groups
def test_a_removed_cgroup_is_an_error_and_the_next_session_has_one() -> None:
    before = set(of(os.getpid()))
    with Sandbox(limits=SMALL) as sandbox:
        for folder in added(before):
            for path in folder.glob("session-*"):
                take_away(path)
        with pytest.raises(IsolationError) as raised:
            sandbox.session()
        assert (raised.value.step, bool(raised.value.remedy)) == ("cgroup", True)
        with sandbox.session() as session:
            assert layer(session).active


@needs_groups
def test_no_session_starts_where_no_group_can_be_made_any_more() -> None:
    before = set(of(os.getpid()))
    with Sandbox(limits=SMALL) as sandbox:
        for folder in added(before):
            for path in (*folder.glob("session-*"), folder):
                take_away(path)
        for _ in range(2):
            with pytest.raises(IsolationError) as raised:
                sandbox.session(limits=Limits(memory=99 * MIB))
            assert (raised.value.step, bool(raised.value.remedy)) == ("cgroup", True)
        assert sandbox.statistics().open == 0


def test_without_a_cgroup_root_auto_goes_on_with_a_reason_and_require_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    missing = CgroupUnavailable("nothing is mounted", "Mount it.")
    monkeypatch.setattr(repl_sandbox.host.template, "find", lambda: missing)
    with Sandbox(limits=SMALL) as sandbox, sandbox.session() as session:
        assert not layer(session).active
        assert session.isolation.tier == "jailed"
        outcome = session.run(f"{FILL}block = fill(150)\nimport time\ntime.sleep(50)")
        assert (outcome.reason, outcome.limits) == ("memory", ())
    with pytest.raises(IsolationError) as raised:
        Sandbox(cgroup="require")
    assert (raised.value.step, raised.value.remedy) == ("cgroup", "Mount it.")


def test_an_unusable_cgroup_root_counts_as_unavailable(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Folders can be made in it, and have no files of the kernel's."""
    monkeypatch.setattr(
        repl_sandbox.host.template, "find", lambda: CgroupRoot(1, (str(tmp_path),) * 2)
    )
    with Sandbox(limits=SMALL) as sandbox, sandbox.session() as session:
        assert session.run("1 + 1").value == "2"
        assert not layer(session).active
    with pytest.raises(IsolationError) as raised:
        Sandbox(cgroup="require")
    assert (raised.value.step, bool(raised.value.remedy)) == ("cgroup", True)
    assert not list(tmp_path.iterdir())


def test_cgroup_off_uses_no_cgroup(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repl_sandbox.host.template, "find", lambda: pytest.fail("looked"))
    with Sandbox(cgroup="off") as sandbox, sandbox.session() as session:
        assert not layer(session).active


def test_an_unknown_cgroup_setting_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="cgroup must be one of auto, require, off, not 'on'"):
        Sandbox(cgroup="on")


# ── the end ───────────────────────────────────────────────────────────────────────────────────


@needs_groups
def test_a_closed_sandbox_leaves_no_cgroup() -> None:
    before = set(of(os.getpid()))
    sandbox = Sandbox(limits=SMALL, ready=2)
    sessions = [sandbox.session() for _ in range(3)]
    assert added(before)
    sessions[0].close()
    sandbox.close()
    assert added(before) == set()


@needs_groups
def test_a_sandbox_that_fails_to_start_leaves_no_cgroup() -> None:
    before = set(of(os.getpid()))
    with pytest.raises(Exception, match="no_such_module"):
        Sandbox(preload=["no_such_module"])
    assert added(before) == set()


HOST = """
import os, sys, time
from repl_sandbox import Sandbox
sandbox = Sandbox()
sessions = [sandbox.session() for _ in range(2)]
sessions[0].close()
child = os.fork() if {fork} else 0
if {fork} and child == 0:
    sandbox.close()
    for session in sessions: session.close()
    time.sleep(600)
    os._exit(0)
print(child, flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def host(*, fork: bool) -> Iterator[tuple[subprocess.Popen[str], int]]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOST.format(fork=fork)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    child = 0
    try:
        child = int(process.stdout.readline())
        yield process, child
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()
        if child:
            os.kill(child, signal.SIGKILL)


@needs_groups
@pytest.mark.parametrize("fork", [False, True], ids=["alone", "survived by a child"])
def test_cgroups_of_a_killed_host_are_removed_by_the_next(fork: bool) -> None:
    with host(fork=fork) as (process, child):
        family = psutil.Process(process.pid).children(recursive=True)
        own = [path for folder in of(process.pid) for path in folder.glob("session-*")]
        with Sandbox():  # it lives, and what is its own stays, used or not
            assert own
            assert all(path.exists() for path in own)
        process.kill()
        process.wait()
        psutil.wait_procs([one for one in family if one.pid != child], timeout=PATIENCE)

        def left() -> list[Path]:
            """An ended process is counted until it was switched out, so one attempt may be too
            early.
            """
            with Sandbox():
                return of(process.pid)

        assert comes_to(left, []) == []


@needs_groups
def test_a_forked_child_that_closes_takes_nothing_from_its_parent() -> None:
    with Sandbox(limits=SMALL) as sandbox, sandbox.session() as session:
        pid = os.fork()
        if pid == 0:
            status = 1
            with contextlib.suppress(BaseException):
                session.close()
                sandbox.close()
                status = 0
            os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert layer(session).active
        with sandbox.session() as other:
            assert layer(other).active


# ── ordinary users ────────────────────────────────────────────────────────────────────────────

WITHOUT = """
import json
from repl_sandbox import IsolationError, Limits, Sandbox
limits = Limits(memory="64MiB", timeout=60)
with Sandbox(limits=limits) as sandbox, sandbox.session() as session:
    active = [one.active for one in session.isolation.layers if one.name == "cgroup"]
    outcome = session.run(
        "import os, time\\n"
        "for _ in range(4):\\n"
        "    if os.fork() == 0:\\n"
        "        block = bytearray(b'1') * (40 << 20)\\n        time.sleep(50)\\n"
        "time.sleep(50)"
    )
try:
    Sandbox(cgroup="require")
except IsolationError as error:
    refused = [error.step, bool(error.remedy)]
print(json.dumps([active, outcome.reason, refused]))
"""


def test_a_user_without_a_group_has_the_watchdog(user: Callable[[str], Any]) -> None:
    assert user(WITHOUT) == [[False], "memory", ["cgroup", True]]


DELEGATED = """
import json, os, sys
sys.stdin.readline()  # now this process is in its group
from repl_sandbox import Limits, Sandbox
from repl_sandbox.host.watchdog import Watchdog
Watchdog.add = lambda self, core: None
limits = Limits(memory="64MiB", workspace="8MiB", timeout=60)
with Sandbox(limits=limits, cgroup="require") as sandbox:
    for _ in range(2):
        with sandbox.session() as session:
            outcome = session.run(
                {fill!r} + "import os\\nchild = os.fork()\\n"
                "if child == 0:\\n    fill(600)\\n    os._exit(0)\\n"
                "os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])"
            )
            found = [layer.active for layer in session.isolation.layers if layer.name == "cgroup"]
    told = [found, type(outcome).__name__, list(outcome.limits)]
print(json.dumps(told))
"""


@needs_groups
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a group away")
def test_a_user_with_a_delegated_group_uses_it(user: Any) -> None:
    with Sandbox(cgroup="require"):  # on version 2, the controllers are given on from now
        mine = [Path(folder, f"test-delegated-{os.getpid()}") for folder in set(FOUND.folders)]
    try:
        for folder in mine:
            folder.mkdir()
            for path in (folder, *folder.glob("cgroup.*"), *folder.glob("tasks")):
                os.chown(path, user.uid, user.uid)
        process = user.start(DELEGATED.format(fill=FILL))
        with process:
            for folder in mine:
                (folder / "cgroup.procs").write_text(str(process.pid))
            out, _ = process.communicate("go\n", timeout=LONG)
        assert json.loads(out) == [[True], "Finished", ["memory"]]
        assert not [path for folder in mine for path in folder.glob("repl-env-*-*")]
    finally:
        for folder in mine:
            for path in (*folder.glob("repl-env-*"), folder):
                with contextlib.suppress(OSError):
                    path.rmdir()
