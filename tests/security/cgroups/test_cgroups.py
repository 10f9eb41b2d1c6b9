"""Cgroups on the hierarchy of this machine: their limits, and their removal.

Skipped where this process may make none. Recorded files (tests/sandbox/limits/test_cgroup_root.py)
cover the parsing of both versions.
"""

from __future__ import annotations

import asyncio
import os
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from repl_sandbox import AsyncSandbox, Finished, Killed, Limits, Sandbox, TimedOut
from repl_sandbox.host.cgroups import SessionCgroup
from repl_sandbox.host.watchdog import Watchdog
from repl_sandbox.jail.mounts import capacity
from repl_sandbox.types import KillReason
from tests.internals import init_pid, session_links, worker_pid
from tests.security.cgroups.cgroup_folders import (
    FILL,
    FOUND,
    MIB,
    SMALL,
    added,
    layer,
    needs_groups,
    of,
)
from tests.waiting import PATIENCE, eventually


@pytest.fixture
def unwatched(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel alone enforces the limits."""
    monkeypatch.setattr(Watchdog, "add", lambda self, core: None)


@pytest.fixture(scope="module")
def small() -> Iterator[Sandbox]:
    with Sandbox(limits=SMALL, cgroup="require", recovery="restart") as sandbox:
        yield sandbox


# ── what a session is in ──────────────────────────────────────────────────────────────────────


@needs_groups
def test_init_worker_and_children_are_in_the_group_and_see_nothing_above_it(
    small: Sandbox,
) -> None:
    with small.session() as session:
        session.run("import os, signal\nif os.fork() == 0: signal.pause()")
        seen = session.run("print(open('/proc/self/cgroup').read())").stdout
        init = psutil.Process(init_pid(session))
        groups = {
            Path(f"/proc/{process.pid}/cgroup").read_text()
            for process in (init, *init.children(recursive=True))
        }

    assert len(groups) == 1
    assert sum("/repl-env-" in line for line in groups.pop().splitlines()) == len(FOUND.folders)
    assert "repl-env" not in seen


@needs_groups
def test_the_layer_reports_the_limits_that_the_kernel_has(small: Sandbox) -> None:
    limits = Limits(memory=100 * MIB, workspace=16 * MIB, processes=7)
    with small.session() as session, small.session(limits=limits) as other:
        for one, given in ((session, SMALL), (other, limits)):
            told = re.fullmatch(r"version (\d), (\d+) MiB, (\d+) processes", layer(one).detail)
            version, memory, processes = map(int, told.groups())
            assert layer(one).active
            assert (version, processes) == (FOUND.version, given.processes + 2)
            least = (int(given.memory) + capacity(int(given.workspace))) // MIB
            assert least < memory < least + 100  # the template, init


@needs_groups
def test_a_session_outside_of_its_cgroup_is_reported_as_not_held(small: Sandbox) -> None:
    with small.session() as session:
        for folder in FOUND.folders:
            Path(folder, "cgroup.procs").write_text(str(worker_pid(session)))
        assert not layer(session).active


@needs_groups
def test_the_oom_killer_prefers_the_code_and_the_code_cannot_change_that(small: Sandbox) -> None:
    with small.session() as session:
        for _ in range(2):  # the first worker, and one that init forked later
            links = session_links(session)
            scores = [
                int(Path(f"/proc/{pid}/oom_score_adj").read_text())
                for pid in (links.worker_pid, links.pid)
            ]
            assert scores[0] == 1000 > scores[1]
            outcome = session.run("open('/proc/self/oom_score_adj', 'w').write('0')")
            assert outcome.error.type == "PermissionError"
            session.run("import os\nos._exit(1)")


# ── memory ────────────────────────────────────────────────────────────────────────────────────


@needs_groups
@pytest.mark.usefixtures("unwatched")
def test_the_kernel_ends_a_worker_that_takes_too_much_and_the_session_goes_on() -> None:
    with (
        Sandbox(limits=SMALL, cgroup="require", recovery="restart") as sandbox,
        sandbox.session() as session,
    ):
        session.run("open('kept', 'w').write('text')")
        outcome = session.run(f"{FILL}block = fill(600)")
        assert isinstance(outcome, Killed), outcome
        assert (outcome.reason, outcome.state, outcome.limits) == (
            "memory",
            "restarted",
            ("memory",),
        )
        after = session.run("open('kept').read()")
        assert (after.value, after.limits) == ("'text'", ())


@needs_groups
@pytest.mark.usefixtures("unwatched")
def test_a_child_killed_by_the_kernel_is_named_though_the_cell_succeeds() -> None:
    code = (
        f"{FILL}import os\nchild = os.fork()\n"
        "if child == 0:\n    fill(600)\n    os._exit(0)\n"
        "os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])"
    )
    with (
        Sandbox(limits=SMALL, cgroup="require", recovery="restart") as sandbox,
        sandbox.session() as session,
    ):
        outcome = session.run(code)
        assert isinstance(outcome, Finished), outcome
        assert (outcome.value, outcome.limits, outcome.state) == ("-9", ("memory",), "kept")
        assert session.run("1 + 1").limits == ()


@needs_groups
async def test_a_slow_host_does_not_query_the_events_of_a_short_cell(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The events are read after a long cell, by the CPU time of its worker."""
    asked: list[SessionCgroup] = []
    hit = SessionCgroup.hit

    def noted(group: SessionCgroup) -> tuple[KillReason, ...]:
        asked.append(group)
        return hit(group)

    monkeypatch.setattr(SessionCgroup, "hit", noted)
    async with (
        AsyncSandbox(cgroup="require", recovery="restart") as sandbox,
        sandbox.session() as session,
    ):

        async def asks(code: str) -> bool:
            asked.clear()
            cell = asyncio.create_task(session.run(code))
            await asyncio.sleep(0)
            until = time.monotonic() + 0.005  # of work for others
            while time.monotonic() < until:
                pass
            assert isinstance(await cell, Finished)
            return bool(asked)

        assert not all([await asks("x = 1") for _ in range(40)])
        busy = (
            "import time\nend = time.process_time() + 0.004\nwhile time.process_time() < end: pass"
        )
        assert await asks(busy)
        assert await asks("time.sleep(0.05)")


@needs_groups
@pytest.mark.usefixtures("unwatched")
def test_a_worker_killed_between_cells_is_named_by_the_next() -> None:
    code = (
        f"{FILL}import os, threading, time\n"
        "def fill_when_told():\n"
        "    while not os.path.exists('/workspace/go'): time.sleep(0.01)\n"
        "    fill(600)\n"
        "threading.Thread(target=fill_when_told).start()"
    )
    with (
        Sandbox(limits=SMALL, cgroup="require", recovery="restart") as sandbox,
        sandbox.session() as session,
    ):
        worker = psutil.Process(worker_pid(session))
        assert isinstance(session.run(code), Finished)
        session.files.put("go", "")
        worker.wait(PATIENCE)
        outcome = session.run("1")
        assert (outcome.value, outcome.state, outcome.limits) == ("1", "restarted", ("memory",))


@needs_groups
@pytest.mark.usefixtures("unwatched")
def test_many_small_children_are_bounded_together() -> None:
    code = (
        "import os, signal\nchildren = []\n"
        "for _ in range(30):\n"
        "    child = os.fork()\n"
        "    if child == 0:\n"
        "        block = bytearray(b'1') * (20 << 20)\n"
        "        signal.pause()\n"
        "    children.append(child)\n"
        "os.waitpid(-1, 0)"
    )
    with (
        Sandbox(limits=SMALL, cgroup="require", recovery="restart") as sandbox,
        sandbox.session() as session,
    ):
        outcome = session.run(code)
        assert "memory" in outcome.limits, outcome
        assert session.run("1 + 1").value == "2"


@needs_groups
def test_full_tmpfs_mounts_leave_a_worker_all_of_its_memory(small: Sandbox) -> None:
    """Their sizes come on top of the limit, for they outlive the worker that filled them."""
    full = (
        "import os\n"
        "for place in ('/tmp', '/workspace', '/dev/shm'):\n"
        "    with open(f'{place}/full', 'wb', buffering=0) as file:\n"
        "        try:\n"
        "            while True: file.write(bytes(1 << 20))\n"
        "        except OSError: pass\n"
    )
    use = "block = bytearray(b'1') * (50 << 20)\nimport time\ntime.sleep(0.3)\nlen(block)"
    with small.session() as session:
        assert isinstance(session.run(full), Finished)
        for _ in range(2):
            outcome = session.run(use)
            assert isinstance(outcome, Finished), outcome
            assert outcome.limits == ()
            session.run("os._exit(1)" if _ else "import os\nos._exit(1)")


@needs_groups
def test_unmapped_shared_memory_counts(small: Sandbox) -> None:
    """No process maps it any more, but the kernel has not forgotten whose it is."""
    code = (
        "import mmap, time\nblock = mmap.mmap(-1, 150 << 20)\n"
        "for i in range(0, 150 << 20, 4096): block[i] = 1\n"
        "block.madvise(mmap.MADV_DONTNEED)\ntime.sleep(50)"
    )
    with small.session() as session:
        outcome = session.run(code)
        assert isinstance(outcome, Killed), outcome
        assert outcome.reason == "memory"


@needs_groups
@pytest.mark.usefixtures("unwatched")
def test_a_timeout_is_reported_as_one_after_a_child_was_killed() -> None:
    prepare = (
        f"{FILL}import os, signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "ours, theirs = os.pipe(), os.pipe()\n"
        "if os.fork() == 0:\n"
        "    block = fill(300)\n    os.write(ours[1], b'1')\n"
        "    os.read(theirs[0], 1)\n    fill(100)\n"
        "os.read(ours[0], 1)"
    )

    def ended() -> None:
        """While the host is waited for, the clock of the cell stands."""
        (child,) = psutil.Process(worker_pid(session)).children()
        eventually(lambda: child.status() == psutil.STATUS_ZOMBIE)

    with (
        Sandbox(limits=SMALL, cgroup="require", recovery="restart") as sandbox,
        sandbox.session(host={"ended": ended}) as session,
    ):
        assert isinstance(session.run(prepare), Finished)
        code = "os.write(theirs[1], b'1')\nended()\nos.wait()\nwhile True: pass"
        outcome = session.run(code, timeout=1)
        assert isinstance(outcome, TimedOut), outcome
        assert outcome.limits == ("memory",)


# ── processes ─────────────────────────────────────────────────────────────────────────────────

FORK_BOMB = "import os, signal\nwhile True:\n    if os.fork() == 0: signal.pause()\n"


@needs_groups
def test_a_fork_bomb_stops_at_the_limit_which_is_named(small: Sandbox) -> None:
    with small.session() as session:
        outcome = session.run(FORK_BOMB)
        assert outcome.error.type == "BlockingIOError"
        assert "Limits.processes" in outcome.error.traceback
        assert outcome.limits == ("processes",)


@needs_groups
@pytest.mark.parametrize("bomb", [FORK_BOMB, f"{FILL}block = fill(600)"], ids=["forks", "memory"])
def test_a_neighbour_is_not_affected(small: Sandbox, bomb: str) -> None:
    with small.session() as victim, small.session() as attacker:
        victim.run("total = 0")
        thread = threading.Thread(target=lambda: [attacker.run(bomb) for _ in range(2)])
        thread.start()
        count, outcomes = 0, []
        while thread.is_alive() or count < 10:
            count += 1
            outcomes.append(
                victim.run(
                    "import os\nchild = os.fork()\n"
                    "if child == 0: os._exit(0)\n"
                    "block = bytearray(b'1') * (8 << 20)\n"
                    "total += 1\nos.waitpid(child, 0)[1]"
                )
            )
        thread.join()
        assert all(isinstance(one, Finished) and one.limits == () for one in outcomes)
        assert victim.run("total").value == str(count)


# ── reuse ─────────────────────────────────────────────────────────────────────────────────────


UNSEEN = (
    "import os, signal, time\n"
    "if os.fork() == 0:\n"
    "    time.sleep(0.05)\n"
    "    try:\n"
    "        while True:\n"
    "            if os.fork() == 0: signal.pause()\n"
    "    except BlockingIOError: open('/workspace/full', 'w')\n"
    "    signal.pause()"
)


@needs_groups
def test_reused_cgroups_reveal_nothing_of_earlier_sessions() -> None:
    before = set(of(os.getpid()))
    with Sandbox(limits=SMALL, cgroup="require", recovery="restart") as sandbox:
        for _ in range(4):
            with sandbox.session() as session:
                outcome = session.run("import time\ntime.sleep(0.01)")
                assert isinstance(outcome, Finished)
                assert outcome.limits == ()
                # A limit that is hit between cells, or in a short cell, goes unreported.
                session.run(UNSEEN)
                while session.run("os.path.exists('/workspace/full')").value != "True":
                    pass
        assert len({path.name for folder in added(before) for path in folder.glob("session-*")}) < 4
