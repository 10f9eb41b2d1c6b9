"""A first worker that contains itself without Python: its restrictions, and names of failures."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from repl_sandbox import IsolationError, Limits, Sandbox, Session
from repl_sandbox.host import zygote
from repl_sandbox.options import Grouping, RecoveryMode, Tier
from tests.internals import worker_pid

# The zygote's program, after a change to the engine.
_CHANGED = """
import importlib.util, os, sys
spec = importlib.util.spec_from_file_location("boot", {boot!r})
boot = importlib.util.module_from_spec(spec)
spec.loader.exec_module(boot)
boot._load_package()
from repl_sandbox.jail import recipe
from repl_sandbox.native import libc
from repl_sandbox.jail.steps import Step

def add(step, before, tier="jailed"):
    lists = recipe.RECIPES[tier]
    steps = list(lists.first_worker)
    steps.insert([step.name for step in steps].index(before), step)
    recipe.RECIPES[tier] = lists._replace(first_worker=steps)

{change}
boot._main(int(sys.argv[1]), sys.argv[2], inside=len(sys.argv) > 3)
"""

# A session's view of its restrictions, without numbers that differ between any two.
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


_POLARS = """
import polars as pl
frame = pl.DataFrame({"group": [1, 1, 2], "value": [1, 2, 3]})
frame.group_by("group", maintain_order=True).agg(pl.col("value").sum()).rows()
"""
# Those that `make test-libraries` installs.
_LIBRARIES = (
    *("pyarrow", "seaborn", "plotly.express", "sklearn.cluster", "xgboost", "lightgbm"),
    *("datasets", "statsmodels.api"),
)
_PRELOADED = ("polars", "pandas", *(_LIBRARIES if "REPL_TEST_LIBRARIES" in os.environ else ()))


@pytest.fixture
def change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Run some Python in the zygotes of this test before they serve."""

    def apply(line: str) -> None:
        boot = tmp_path / "boot.py"
        boot.write_text(_CHANGED.format(boot=original, change=line))
        boot.chmod(0o644)
        monkeypatch.setattr(zygote, "BOOT", str(boot))

    original = zygote.BOOT
    return apply


def _seen(session: Session) -> str:
    layers = {layer.name: layer.active for layer in session.isolation.layers}
    value = session.run(_SEEN).value
    assert value is not None
    return f"{layers}\n{value}".replace("'NSpid': '\\t3\\n'", "'NSpid': '\\t2\\n'")


@pytest.mark.parametrize("cgroup", ["auto", "off"])
def test_the_first_worker_has_the_layers_of_later_workers(cgroup: Grouping) -> None:
    """The first takes its steps without Python; a restarted worker takes them in Python."""
    limits = Limits(workspace="7MiB", processes=33, open_files=77)
    with (
        Sandbox(isolation="jailed", recovery="restart", cgroup=cgroup, limits=limits) as sandbox,
        sandbox.session() as session,
    ):
        first = _seen(session)
        assert session.run("os._exit(1)").state == "restarted"
        assert first == _seen(session)


def test_mounts_below_private_folders_are_shown(tmp_path: Path) -> None:
    """Like a checkout in /tmp, or data in the workspace: directories, files, one within another."""
    (tmp_path / "within").mkdir()
    (tmp_path / "file").write_text("from the host")
    tmp_path.chmod(0o755)
    mounts: Mapping[str, str] = {
        "/tmp/deep/below/folder": "/usr/share",
        "/tmp/deep/file": str(tmp_path / "file"),
        "/workspace/data": str(tmp_path),
        "/workspace/data/within": "/usr/share",
        "/workspace/data-too": str(tmp_path),
        "/dev/shm/file": str(tmp_path / "file"),
    }
    with Sandbox(isolation="jailed", mounts=mounts) as sandbox, sandbox.session() as session:
        seen = _seen(session)
        assert all(f" {place} " in seen for place in mounts)
        assert session.run("open('/dev/shm/file').read()").value == "'from the host'"


@pytest.mark.parametrize("before", ["hostname", "process group", "seccomp", "init"])
def test_a_step_that_fails_is_named(change: Callable[[str], None], before: str) -> None:
    """As the first, a middle and the last step."""
    broken = "Step('broken', '', lambda jail: [libc.call('chdir', b'/nowhere')])"
    change(f"add({broken}, {before!r})")
    with pytest.raises(IsolationError, match="No such file") as caught:
        Sandbox(isolation="jailed")
    assert caught.value.step == "broken"


@pytest.mark.parametrize("tier", ["jailed", "confined"])
def test_an_ineffective_ruleset_is_an_error(
    change: Callable[[str], None], tier: Tier, open_python: str
) -> None:
    change("libc._NUMBERS['landlock_restrict_self'] = 39, 172  # getpid")
    with pytest.raises(IsolationError, match="can be written") as caught:
        Sandbox(isolation=tier, python=None if tier == "jailed" else open_python)
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
from repl_sandbox.worker.main import Worker
import ctypes
import os
prctl, serve_on = ctypes.CDLL(None).prctl, Worker.serve_prepared

def asked(*arguments, **named):
    if os.getpid() == 2:  # and not the template, which does so beforehand
        prctl(15, b"asked", 0, 0, 0)  # PR_SET_NAME
    serve_on(*arguments, **named)

Worker.serve_prepared = asked
"""


def _worker_name(session: Session) -> str:
    return Path(f"/proc/{worker_pid(session)}/comm").read_text().strip()


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


@pytest.mark.parametrize("call", ["os.pipe2", "_socket.socketpair"])
def test_descriptor_numbers_of_the_zygote_do_not_affect_its_sessions(
    change: Callable[[str], None], call: str
) -> None:
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


def test_consecutive_sessions_have_different_limits() -> None:
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


# Like a library's use of pthread_atfork(3): glibc has no other name for it that can be looked up.
_THREAD = """
import _thread, ctypes
lock = _thread.allocate_lock()
lock.acquire()
def start():
    if os.getpid() == 2:
        _thread.start_new_thread(lock.acquire, ())
callback = ctypes.CFUNCTYPE(None)(start)
ctypes.PyDLL(None).__register_atfork(None, None, callback, None)
"""
_THREAD_STEP = """
import _thread
lock = _thread.allocate_lock()
lock.acquire()
start = lambda jail: _thread.start_new_thread(lock.acquire, ()) and None
add(Step('library', '', None, start), 'folder', 'confined')
"""


@pytest.mark.parametrize(("tier", "how"), [("jailed", _THREAD), ("confined", _THREAD_STEP)])
def test_a_thread_in_the_forking_process_is_an_error(
    change: Callable[[str], None], tier: Tier, how: str
) -> None:
    """It would share the code's memory, with the capabilities and without the rules."""
    change(how)
    with pytest.raises(IsolationError, match="preload") as caught:
        Sandbox(isolation=tier)
    assert caught.value.step == "single thread"


# A module whose import starts a thread that stays.
_LEAVES_THREAD = """
import _thread, threading
from importlib.machinery import ModuleSpec
class Leaving:
    def find_spec(self, name, path=None, target=None):
        return ModuleSpec(name, self) if name == "leaving" else None
    def create_module(self, spec):
        return None
    def exec_module(self, module):
        module.stop = threading.Event()
        threading.Thread(target=module.stop.wait, args=({seconds},), name="collector").start()
sys.meta_path.append(Leaving())
"""


@pytest.mark.parametrize("tier", ["jailed", "confined"])
def test_a_module_that_leaves_a_thread_is_named_with_it(
    change: Callable[[str], None], tier: Tier
) -> None:
    change(_LEAVES_THREAD.format(seconds=999))
    with pytest.raises(IsolationError) as caught:
        Sandbox(isolation=tier, preload=["string", "leaving"])
    assert caught.value.step == "single thread"
    assert caught.value.message.startswith("preload: leaving left the thread 'collector' of Python")
    assert caught.value.remedy.startswith("Leave leaving out of preload")


def test_a_thread_that_ends_by_itself_is_waited_for(change: Callable[[str], None]) -> None:
    change(_LEAVES_THREAD.format(seconds=0.1))
    with Sandbox(preload=["leaving"]) as sandbox, sandbox.session() as session:
        assert session.run("import leaving; leaving.stop.is_set()").value == "False"


@pytest.mark.parametrize("module", _PRELOADED)
def test_a_library_with_threads_of_its_own_can_be_preloaded(module: str) -> None:
    with Sandbox(preload=[module]) as sandbox:
        with sandbox.session() as session:
            assert session.run(_POLARS).value == "[(1, 3), (2, 3)]"
            assert session.run("import os; os._exit(1)").state == "rolled_back"
        with sandbox.with_shared(rows=[1, 2]) as shared, shared.session() as session:
            assert session.run(_POLARS + "\nrows").value == "[1, 2]"
