"""A first worker that contains itself without Python: as with it, and what fails is named."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from repl_sandbox import IsolationError, Limits, Sandbox, Session
from repl_sandbox.arguments import Grouping, RecoveryMode, Tier
from repl_sandbox.zygote import process

# The zygote's program, after a change to the engine.
_CHANGED = """
import importlib.util, os, sys
spec = importlib.util.spec_from_file_location("boot", {boot!r})
boot = importlib.util.module_from_spec(spec)
spec.loader.exec_module(boot)
boot._load_package()
from repl_sandbox.jail import libc, quiet_steps, recipe
from repl_sandbox.jail.calls import Calls

def add(step, before, tier="jailed"):
    lists = recipe.RECIPES[tier]
    steps = list(lists.first_worker)
    steps.insert([name for name, _ in steps].index(before), step)
    recipe.RECIPES[tier] = lists._replace(first_worker=steps)

def refuse(*arguments):
    raise AssertionError("a chain was to do it")

{change}
boot._main(int(sys.argv[1]), sys.argv[2], inside=len(sys.argv) > 3)
"""

_IN_PYTHON = "quiet_steps.prepare = lambda *_: None"
_NOT_IN_PYTHON = """
for step in (
    recipe.mount_private, recipe.uncover, recipe.empty_bounding_set, recipe.load_filter
):
    step.__code__ = refuse.__code__
"""

# What a session can see of how it is held; less numbers that differ between any two.
_SEEN = r"""
import os, re
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
kept = ("Uid", "Gid", "Groups", "NSpid", "NoNewPrivs", "Seccomp", "Seccomp_filters")
(
    {name: text for name, text in status.items() if name in kept or name.startswith("Cap")},
    re.sub(r"Max data size.*", "", open("/proc/self/limits").read()),
    re.sub(r"id=\d{10}", "", open("/proc/self/mounts").read()),
    open("/proc/self/oom_score_adj").read(),
    open("/proc/self/cgroup").read(),
    sorted(os.listdir("/proc/self/fd")),
    (os.getcwd(), os.uname().nodename, os.getsid(0) == os.getpid(), dict(os.environ)),
)
"""


@pytest.fixture
def change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Have the zygotes of this test run some Python before they serve."""

    def apply(line: str) -> None:
        boot = tmp_path / "boot.py"
        boot.write_text(_CHANGED.format(boot=original, change=line))
        boot.chmod(0o644)
        monkeypatch.setattr(process, "_BOOT", str(boot))

    original = process._BOOT
    return apply


def _seen(recovery: RecoveryMode, cgroup: Grouping, mounts: Mapping[str, str] = {}) -> str:
    limits = Limits(workspace="7MiB", processes=33, open_files=77)
    with (
        Sandbox(
            isolation="jailed", recovery=recovery, cgroup=cgroup, limits=limits, mounts=mounts
        ) as sandbox,
        sandbox.session() as session,
    ):
        layers = {layer.name: layer.active for layer in session.isolation.layers}
        value = session.run(_SEEN).value
    assert value is not None
    return f"{layers}\n{value}"


@pytest.mark.parametrize("recovery", ["restart", "snapshot"])
@pytest.mark.parametrize("cgroup", ["auto", "off"])
def test_a_session_is_held_as_by_python(
    change: Callable[[str], None], recovery: RecoveryMode, cgroup: Grouping
) -> None:
    change(_NOT_IN_PYTHON)
    by_chains = _seen(recovery, cgroup)
    change(_IN_PYTHON)
    assert by_chains == _seen(recovery, cgroup)


def test_mounts_in_private_places_are_shown_as_by_python(
    change: Callable[[str], None], tmp_path: Path
) -> None:
    """As a checkout in /tmp is, or data in the workspace: folders, files, one within another."""
    (tmp_path / "within").mkdir()
    (tmp_path / "file").write_text("from the host")
    tmp_path.chmod(0o755)
    mounts = {
        "/tmp/deep/below/folder": "/usr/share",
        "/tmp/deep/file": str(tmp_path / "file"),
        "/workspace/data": str(tmp_path),
        "/workspace/data/within": "/usr/share",
        "/workspace/data-too": str(tmp_path),
        "/dev/shm/file": str(tmp_path / "file"),
    }
    change(_NOT_IN_PYTHON)
    by_chains = _seen("snapshot", "auto", mounts)
    assert all(f" {place} " in by_chains for place in mounts)
    change(_IN_PYTHON)
    assert by_chains == _seen("snapshot", "auto", mounts)


@pytest.mark.parametrize("before", ["hostname", "process group", "workspace", "seccomp", "init"])
def test_a_step_that_fails_is_named(change: Callable[[str], None], before: str) -> None:
    """As the first of a chain, amid one and as its last."""
    change(f"add(('broken', Calls((('chdir', b'/nowhere'),))), {before!r})")
    with pytest.raises(IsolationError, match="No such file") as caught:
        Sandbox(isolation="jailed")
    assert caught.value.step == "broken"


def test_a_step_that_is_no_call_has_its_turn(change: Callable[[str], None]) -> None:
    """After those before it, when the private places are there, and before that of the user."""
    make = "recipe.users.become(0) or os.mkdir('/workspace/made')"  # somebody in the session
    change(f"add(('own', lambda jail: {make}), 'workspace')")
    with Sandbox(isolation="jailed") as sandbox, sandbox.session() as session:
        assert (
            session.run("import os\nos.listdir(), os.stat('made').st_uid != os.getuid()").value
            == "(['made'], True)"
        )


def test_a_ruleset_that_does_not_hold_is_an_error(change: Callable[[str], None]) -> None:
    change("libc._NUMBERS['landlock_restrict_self'] = libc._NUMBERS['getpid']")
    with pytest.raises(IsolationError, match="can be written") as caught:
        Sandbox(isolation="jailed")
    assert caught.value.step == "Landlock"


def test_a_limit_that_cannot_be_set_is_named(change: Callable[[str], None]) -> None:
    change(
        "from repl_sandbox.jail import rlimits\n"
        "plan = rlimits.plan\n"
        "rlimits.plan = lambda limits: [(99, (0, 0)), *plan(limits)]"
    )
    with pytest.raises(IsolationError, match="Invalid argument") as caught:
        Sandbox(isolation="jailed")
    assert caught.value.step == "resource limits"


_NAMED = """
from repl_sandbox.jail.quiet_init import FIRST_WORKER
from repl_sandbox.worker.main import Worker
import ctypes
import os
prctl, serve_on = ctypes.CDLL(None).prctl, Worker.serve_on

def asked(*arguments, **named):
    if os.getpid() == FIRST_WORKER:  # and not the template, which does so beforehand
        prctl(15, b"asked", 0, 0, 0)  # PR_SET_NAME
    serve_on(*arguments, **named)

Worker.serve_on = asked
"""


def _worker_name(session: Session) -> str:
    return Path(f"/proc/{session._core.links.worker_pid}/comm").read_text().strip()


@pytest.mark.parametrize("recovery", ["restart", "snapshot"])
def test_a_worker_runs_no_python_until_it_is_asked_something(
    change: Callable[[str], None], recovery: RecoveryMode
) -> None:
    change(_NAMED)
    with (
        Sandbox(isolation="jailed", recovery=recovery) as sandbox,
        sandbox.session() as session,
        sandbox.session() as other,
    ):
        before = _worker_name(session)
        session.run("x = 1")
        assert (before == _worker_name(other)) and _worker_name(session) == "asked" != before


@pytest.mark.parametrize(
    "fails", ["fcntl", "writev", "ppoll"], ids=["pages not tracked", "not said", "no wait"]
)
def test_what_is_not_as_it_should_be_is_left_to_python(
    change: Callable[[str], None], fails: str
) -> None:
    """A number of a call that is none: the kernel says ENOSYS."""
    change(f"libc._NUMBERS[{fails!r}] = 0xFFFF, 0xFFFF")
    with Sandbox(isolation="jailed") as sandbox, sandbox.session() as session:
        assert session.run("x = 1; x").value == "1"
        assert session.run("x = 2; import os; os._exit(1)").state == "rolled_back"
        assert session.get("x") == 1
        assert all(layer.active for layer in session.isolation.layers if layer.name != "cgroup")


@pytest.mark.parametrize("call", ["os.pipe2", "_socket.socketpair"])
def test_what_has_another_number_than_last_time_is_made_anew(
    change: Callable[[str], None], call: str
) -> None:
    """The zygote lets go of what a session had, and opens the same for the next."""
    change(
        "import _socket\n"
        f"made, kept = {call}, []\n"
        "def sparsely(*arguments):\n"
        "    if len(kept) < 40:\n"
        "        kept.append(os.open('/dev/null', os.O_RDONLY | os.O_CLOEXEC))\n"
        "    return made(*arguments)\n"
        f"{call} = sparsely"
    )
    with Sandbox(isolation="jailed") as sandbox:
        for number in range(8):
            with sandbox.session() as session:
                session.run(f"x = {number}")
                assert session.run("import os; os._exit(1)").state == "rolled_back"
                assert session.get("x") == number


def test_sessions_of_different_limits_take_turns() -> None:
    few, more = Limits(open_files=70), Limits(open_files=90)
    code = "import resource; resource.getrlimit(resource.RLIMIT_NOFILE)[0]"
    with Sandbox(isolation="jailed", limits=few) as sandbox:
        least = None
        for limits in (few, more, few, few, more):
            with sandbox.session(limits=limits) as session:
                value = session.run(code).value
            assert value is not None
            least = int(value) if least is None else least
            assert int(value) - least == limits.open_files - few.open_files


@pytest.mark.parametrize(("tier", "before"), [("jailed", "hostname"), ("confined", "folder")])
def test_a_thread_that_came_with_the_fork_is_an_error(
    change: Callable[[str], None], tier: Tier, before: str
) -> None:
    """It would share the code's memory, with the capabilities and without the rules."""
    change(
        "import _thread\n"
        "lock = _thread.allocate_lock()\n"
        "lock.acquire()\n"
        "start = lambda jail: _thread.start_new_thread(lock.acquire, ()) and None\n"
        f"add(('library', start), {before!r}, {tier!r})"
    )
    with pytest.raises(IsolationError, match="preload") as caught:
        Sandbox(isolation=tier)
    assert caught.value.step == "single thread"
