"""The life of sessions in tier `confined`: processes, files, branches, cleaning up."""

from __future__ import annotations

import json
import operator
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from repl_sandbox import (
    Finished,
    IsolationError,
    Killed,
    Limits,
    Raised,
    Sandbox,
    SandboxError,
    Session,
    TimedOut,
)
from repl_sandbox.jail import landlock, session_directory
from repl_sandbox.jail.landlock import kernel_abi
from repl_sandbox.jail.recipe import CONFINED_INIT, CONFINED_WORKER
from tests.internals import init_pid, session_links, zygote_pid
from tests.waiting import PATIENCE, comes_to, eventually

pytestmark = pytest.mark.skipif(not kernel_abi(), reason="this kernel has no Landlock")


@pytest.fixture(scope="module")
def confined(open_python: str) -> Iterator[Sandbox]:
    limits = Limits(timeout=PATIENCE, grace=0.2, workspace="4MiB", processes=20)
    with Sandbox(isolation="confined", python=open_python, limits=limits) as sandbox:
        yield sandbox


@pytest.fixture
def session(confined: Sandbox) -> Iterator[Session]:
    with confined.session() as session:
        yield session


def value(session: Session, code: str) -> Any:
    outcome = session.run(code)
    assert isinstance(outcome, Finished), outcome
    return session.get("seen")


def folder_of(session: Session) -> Path:
    return Path(session_links(session).folder)


def wait_until_gone(paths: list[Path]) -> None:
    """For what the kernel or the template does on its own."""
    eventually(lambda: not any(path.exists() for path in paths), lambda: paths)


def test_threads_programs_coroutines_and_interrupts_work(confined: Sandbox) -> None:
    code = (
        "import asyncio, concurrent.futures, subprocess, sqlite3, sys\n"
        "with concurrent.futures.ThreadPoolExecutor(4) as pool:\n"
        "    squares = list(pool.map(lambda n: n * n, range(4)))\n"
        "await asyncio.sleep(0)\n"
        "program = [sys.executable, '-c', 'print(6 * 7)']\n"
        "said = subprocess.run(program, capture_output=True).stdout\n"
        "rows = sqlite3.connect('a.db').execute('select 1').fetchall()\n"
        "seen = [squares, said.decode().strip(), rows]"
    )
    # Code that obeys its interrupt is not killed, however late the kernel schedules it.
    with confined.session(limits=Limits(timeout=PATIENCE, grace=PATIENCE)) as session:
        assert value(session, code) == [[0, 1, 4, 9], "42", [[1]]]
        stopped = session.run("while True: pass", timeout=0.2)
        assert isinstance(stopped, TimedOut)
        assert stopped.state == "kept"
        assert value(session, "seen = said.decode().strip()") == "42"


def test_a_traceback_shows_the_lines_of_files_in_the_workspace(session: Session) -> None:
    code = "open('module.py', 'w').write('def f():\\n    raise KeyError(1)\\n')\nimport sys\n"
    session.run(
        code + "sys.path.insert(0, '.')\nimport os\nsys.path[0] = os.getcwd()\nimport module"
    )
    outcome = session.run("module.f()")
    assert isinstance(outcome, Raised)
    assert outcome.error is not None
    assert "module.py" in outcome.error.traceback


def test_a_worker_that_dies_leaves_its_files_and_takes_its_children(session: Session) -> None:
    code = (
        "import os, subprocess\nopen('kept', 'w').write('x')\n"
        "child = subprocess.Popen(['sleep', '600'], start_new_session=True)\nseen = child.pid"
    )
    child = value(session, code)
    outcome = session.run("os._exit(3)")
    assert isinstance(outcome, Killed)
    assert outcome.state == "rolled_back"
    assert not Path(f"/proc/{child}").exists()
    assert value(session, "import os\nseen = os.listdir()") == ["kept"]


def test_a_workspace_that_the_code_removed_is_made_again(session: Session) -> None:
    session.run("import os, shutil\nshutil.rmtree(os.getcwd())\nos._exit(1)")
    assert value(session, "import os\nopen('x', 'w').close()\nseen = os.listdir()") == ["x"]


# Three generations away from the worker, in sessions and groups of their own, deaf to signals.
ESCAPE = """
import os, signal, time
def deep(n):
    pid = os.fork()
    if pid == 0:
        os.setsid()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        if n:
            deep(n - 1)
            os._exit(0)
        os.write(write, b'%d' % os.getpid())
        time.sleep(600)
    os.waitpid(pid, 0) if n else None
read, write = os.pipe()
deep(3)
seen = int(os.read(read, 20))
"""


def test_closing_reaches_processes_that_left_their_parents(confined: Sandbox) -> None:
    with confined.session() as session:
        pid = value(session, ESCAPE)
        folder = folder_of(session)
        assert Path(f"/proc/{pid}").exists()
    assert not Path(f"/proc/{pid}").exists()
    wait_until_gone([folder])  # its files take the time that they take


def test_a_subreaper_process_is_reached_too(confined: Sandbox) -> None:
    code = "import ctypes\nctypes.CDLL(None).prctl(36, 1)\n" + ESCAPE
    with confined.session() as session:
        pid = value(session, code)
    assert not Path(f"/proc/{pid}").exists()


def test_a_fork_bomb_affects_its_session_only(confined: Sandbox) -> None:
    bomb = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
    with confined.session() as session, confined.session() as other:
        outcome = session.run(bomb, timeout=1)
        assert isinstance(outcome, (TimedOut, Killed))
        assert value(other, "seen = 1") == 1
        assert session.run("6 * 7").value == "42"


def test_an_init_that_is_killed_takes_its_session_with_it(confined: Sandbox) -> None:
    """As an out-of-memory kill of the kernel."""
    session = confined.session()
    pid = value(session, ESCAPE)
    folder = folder_of(session)
    os.kill(init_pid(session), 9)
    session.close()
    assert not Path(f"/proc/{pid}").exists()
    wait_until_gone([folder])
    with confined.session() as other:
        assert value(other, "seen = 1") == 1


def test_more_files_than_allowed_exceed_a_limit(session: Session) -> None:
    code = (
        "import time\nfor n in range(100):\n"
        "    with open(f'{n}', 'wb') as file: file.write(bytes(1 << 20))\n    time.sleep(0.05)\n"
        "time.sleep(50)"
    )
    outcome = session.run(code)
    assert isinstance(outcome, Killed)
    assert outcome.reason == "workspace"
    assert value(session, "import os\nseen = os.listdir()") == []
    assert session_directory.use(str(folder_of(session)), 1 << 40) < 1 << 20


TOO_MANY = """
x = 2
for n in range(10):
    with open(f'{n}', 'wb') as file: file.write(bytes(1 << 20))
time.sleep(50)
"""


def test_after_exceeding_its_files_a_session_has_those_from_before_and_can_write_again(
    session: Session,
) -> None:
    """The ruleset of its snapshot allows one directory, and not another one made in its place."""
    session.files.put("in/given", b"by the host")
    session.run("import time\nx = 1\nopen('earlier', 'w').write('result')")
    outcome = session.run("open('earlier', 'w').write('spoilt')\n" + TOO_MANY)
    assert isinstance(outcome, Killed)
    assert (outcome.reason, outcome.state) == ("workspace", "rolled_back")
    assert outcome.lost == ()
    session.files.put("put", b"afterwards")
    told = session.run(
        "import os, tempfile\nwith tempfile.TemporaryFile() as file: file.write(b'1')\n"
        "open('own', 'w').close()\n"
        "x, open('in/given').read(), open('earlier').read(), sorted(os.listdir())"
    )
    assert told.value == "(1, 'by the host', 'result', ['earlier', 'in', 'own', 'put'])"
    with session.branch() as branch:
        assert branch.run("x, open('earlier').read()").value == "(1, 'result')"


EXCESSES = {
    "one file": "open('big', 'wb').write(bytes(10 << 20))",
    "temporary files": "import tempfile\nopen(tempfile.mkstemp()[1], 'wb').write(bytes(10 << 20))",
    "beside the workspace": "open('../big', 'wb').write(bytes(10 << 20))",
    "very many": (
        "os.mkdir('many')\nfor name in (*map('many/{}'.format, range(40_000)), *map('../{}'.format,"
        " range(40_000))): os.close(os.open(name, os.O_CREAT))"
    ),
    "very deep": "for n in range(100): os.mkdir('d'); os.chdir('d')",
    "closed": (
        "os.makedirs('a/b'); file = open('a/b/big', 'wb'); home = os.getcwd()\n"
        "for path in ('a/b', 'a', home, os.path.dirname(home)): os.chmod(path, 0)\n"
        "file.write(bytes(10 << 20)); file.flush()"
    ),
    "in the given directory": "open('in/big', 'wb').write(bytes(10 << 20))",
    "renamed": "os.rename('in', 'out'); open('out/big', 'wb').write(bytes(10 << 20))",
}


@pytest.mark.parametrize("excess", EXCESSES)
def test_an_excess_of_any_kind_costs_no_earlier_file(session: Session, excess: str) -> None:
    session.files.put("in/given", b"by the host")
    session.run(
        "import os, tempfile, time\nx = 1\nopen('earlier', 'w').write('result')\n"
        "temporary = tempfile.mkstemp()[1]\nopen(temporary, 'w').write('temporary')"
    )
    outcome = session.run(f"{EXCESSES[excess]}\ntime.sleep(50)")
    assert isinstance(outcome, Killed)
    assert (outcome.reason, outcome.state) == ("workspace", "rolled_back")
    told = session.run("x, open('in/given').read(), open('earlier').read(), sorted(os.listdir())")
    assert told.value == "(1, 'by the host', 'result', ['earlier', 'in'])"
    if excess not in ("very many", "very deep"):  # where all but the kept files have to go
        assert session.run("open(temporary).read()").value == "'temporary'"
    assert session.run("time.sleep(1)\nopen('more', 'w').close()").state == "kept"
    assert session_directory.use(str(folder_of(session)), 1 << 40) < 1 << 20


def test_a_first_cell_that_exceeds_the_files_costs_no_file_of_the_host(session: Session) -> None:
    session.files.put("given", b"by the host")
    outcome = session.run("import time" + TOO_MANY)
    assert isinstance(outcome, Killed)
    assert outcome.reason == "workspace"
    assert session.run("open('given').read()").value == "'by the host'"


def test_files_beyond_what_is_kept_survive_where_they_were_not_touched(open_python: str) -> None:
    limits = Limits(timeout=PATIENCE, workspace="90MiB")
    with (
        Sandbox(isolation="confined", python=open_python, limits=limits) as sandbox,
        sandbox.session() as session,
    ):
        session.files.put("given", bytes(70 << 20))
        session.run("import os, time\nx = 1\nopen('earlier', 'w').write('result')")
        outcome = session.run("open('big', 'wb').write(bytes(40 << 20))\ntime.sleep(50)")
        assert isinstance(outcome, Killed)
        assert (outcome.reason, outcome.state) == ("workspace", "rolled_back")
        told = session.run("x, os.path.getsize('given'), open('earlier').read(), len(os.listdir())")
        assert told.value == f"(1, {70 << 20}, 'result', 2)"


def test_a_state_that_exceeds_the_limit_itself_loses_its_latest_files(session: Session) -> None:
    """A cell may end before the next measurement."""
    session.files.put("given", b"by the host")
    # A file that changed as its cell ended is written anew when it is restored.
    session.run("import os, time\nx = 1\nopen('big', 'wb').write(bytes(10 << 20))\nos.utime('big')")
    lost = session.run("time.sleep(50)").lost
    # The worker may be ended before it has the snapshot of a cell that changed nothing.
    assert lost[0] == "file 'big': exceeded Limits.workspace, and was removed"
    assert all(text.endswith("no later snapshot was made") for text in lost[1:])
    assert session.run("x, os.listdir()").value == "(1, ['given'])"


@pytest.mark.parametrize("recovery", ["snapshot", "restart"])
def test_without_snapshots_the_earlier_files_stay_too(open_python: str, recovery: str) -> None:
    limits = Limits(timeout=PATIENCE, workspace="4MiB")
    with (
        Sandbox(
            isolation="confined", python=open_python, limits=limits, recovery=recovery
        ) as sandbox,
        sandbox.session() as session,
    ):
        session.files.put("in/given", b"by the host")
        session.run("import time\nx = 1\nopen('earlier', 'w').write('result')")
        outcome = session.run(TOO_MANY)
        assert isinstance(outcome, Killed)
        assert outcome.reason == "workspace"
        told = session.run("import os\nopen('in/given').read(), open('earlier').read()")
        assert told.value == "('by the host', 'result')"
        assert session_directory.use(str(folder_of(session)), 1 << 40) <= 4 << 20


def test_a_branch_keeps_its_files_when_another_exceeds_the_limit(session: Session) -> None:
    """The limit is of all that a session and its branches have."""
    session.run("import os, time\nx = 1\nopen('common', 'w').close()")
    with session.branch() as branch:
        branch.run("y = 2\nopen('mine', 'w').close()")
        assert session.run(TOO_MANY).state == "rolled_back"
        outcome = branch.run("x, y, sorted(os.listdir())")
        assert (outcome.value, outcome.lost) == ("(1, 2, ['common', 'mine'])", ())
        outcome = branch.run("open('again', 'w').close()" + TOO_MANY)
        assert (outcome.state, outcome.lost) == ("rolled_back", ())
        assert branch.run("x, y, sorted(os.listdir())").value == "(1, 2, ['common', 'mine'])"
    assert session.run("x, os.listdir()").value == "(1, ['common'])"


def test_idle_branches_are_not_ended_for_another_branch(session: Session) -> None:
    """Whichever is looked at first: all have the same files, and the limit is of all."""
    session.run("import os, time\nx = 1")
    with session.branch() as one, session.branch() as other:
        for _ in range(12):
            outcome = session.run(TOO_MANY)
            assert isinstance(outcome, Killed), outcome
            assert [branch.run("x").state for branch in (one, other)] == ["kept", "kept"]


LEFT_BEHIND = """
import os
os.makedirs('closed/inner')
open('closed/inner/file', 'w').close()
os.chmod('closed/inner', 0)
os.chmod('closed', 0)
os.symlink('/', 'root')
os.symlink('/etc/passwd', 'passwd')
for n in range(50):
    os.mkdir('d' * 200)
    os.chdir('d' * 200)
open('deepest', 'w').close()
"""


def test_a_directory_is_removed_with_any_contents(confined: Sandbox) -> None:
    """Deeper than PATH_MAX, without permissions for its owner, with symbolic links."""
    with confined.session() as session:
        outcome = session.run(LEFT_BEHIND)
        assert isinstance(outcome, Finished), outcome
        folder = folder_of(session)
    wait_until_gone([folder])
    base = folder.parent
    wait_until_gone(
        [base / name for name in os.listdir(base) if name.startswith(folder.name + ".")]
    )
    assert os.path.exists("/etc/passwd")


@pytest.fixture
def fresh(open_python: str) -> Iterator[Sandbox]:
    with Sandbox(isolation="confined", python=open_python) as sandbox:
        yield sandbox


@pytest.mark.parametrize("many", [50, pytest.param(200, marks=pytest.mark.slow)])
def test_many_sessions_leave_nothing(fresh: Sandbox, many: int) -> None:
    zygote = psutil.Process(zygote_pid(fresh))

    def held() -> list[int]:
        found = os.listdir(f"/proc/{zygote.pid}/fd")
        return [psutil.Process().num_fds(), len(found), len(zygote.children(recursive=True))]

    with fresh.session() as session:
        session.run("1")
        base = folder_of(session).parent
    # The process that enforces the process limits of sessions.
    eventually(lambda: held()[2] == 1)
    before = held()
    for n in range(many):
        with fresh.session() as session:
            code = "import os\nopen('x', 'w').close()\n" + ("os.fork()\n" if n % 10 == 0 else "")
            assert session.run(code + "6 * 7").value == "42"
    eventually(lambda: all(map(operator.le, held(), before)), lambda: (before, held()))
    assert comes_to(lambda: os.listdir(base), ["template"]) == ["template"]


def test_a_large_directory_is_removed_and_its_remover_is_reaped(fresh: Sandbox) -> None:
    zygote = psutil.Process(zygote_pid(fresh))
    with fresh.session() as session:
        session.run("for n in range(20_000): open(str(n), 'w').close()")
        folder = folder_of(session)
    eventually(lambda: not folder.exists() and len(zygote.children()) == 1)


def test_closing_the_sandbox_leaves_nothing(open_python: str) -> None:
    with Sandbox(isolation="confined", python=open_python) as sandbox:
        session = sandbox.session()
        pid = value(session, ESCAPE)
        base = folder_of(session).parent
    assert not Path(f"/proc/{pid}").exists()
    assert not base.exists()


def test_a_template_that_cannot_be_made_leaves_nothing(
    open_python: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(SandboxError, match="no_such_module"):
        Sandbox(isolation="confined", python=open_python, preload=["no_such_module"])
    assert os.listdir(tmp_path) == []


def test_sessions_can_be_prepared_in_confined(open_python: str) -> None:
    with Sandbox(isolation="confined", python=open_python, ready=2) as sandbox:
        for _ in range(4):
            with sandbox.session() as session:
                assert value(session, "seen = 1") == 1


KILLED = """
import json, os, sys
from repl_sandbox import Sandbox
sandbox = Sandbox(isolation="confined", python={python!r})
session = sandbox.session()
session.run({code!r})
pids = [sandbox._zygote.pid, session._core.links.pid, session.get("seen")]
print(json.dumps([pids, session._core.links.folder]), flush=True)
os.kill({victim}, 9)
sys.stdin.read()
"""


@pytest.mark.parametrize("victim", ["os.getpid()", "pids[0]"], ids=["the host", "the template"])
def test_sessions_without_their_host_or_template_end_and_clean_up(
    open_python: str, victim: str
) -> None:
    script = KILLED.format(python=open_python, code=ESCAPE, victim=victim)
    with subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as host:
        assert host.stdout is not None
        pids, folder = json.loads(host.stdout.readline())
        gone = [Path(f"/proc/{pid}") for pid in pids[1:]]
        wait_until_gone([*gone, Path(folder)])
        assert host.stdin is not None
        host.stdin.close()


def test_leftovers_of_a_crash_are_removed_by_the_next_sandbox(
    open_python: str, tmp_path: Path
) -> None:
    place = tmp_path
    left = place / "repl-sandbox-0123456789abcdef"
    (left / "4" / "workspace").mkdir(parents=True)
    held = Path(session_directory.make_base(str(place)))
    assert not left.exists()
    again = Path(session_directory.make_base(str(place)))
    assert held.exists()  # for this process holds it
    assert again != held


# ── what it is made of ────────────────────────────────────────────────────────────────────────


@pytest.fixture
def shown() -> Iterator[Path]:
    # Not below pytest's directory, which other users may not enter.
    with tempfile.TemporaryDirectory(prefix="repl-shown-", dir="/var/tmp") as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


def test_mounts_can_be_shown_at_their_own_path_alone(open_python: str, shown: Path) -> None:
    (shown / "data").write_text("data")
    with (
        Sandbox(
            isolation="confined", python=open_python, mounts={str(shown): str(shown)}
        ) as sandbox,
        sandbox.session() as session,
    ):
        assert value(session, f"seen = open('{shown}/data').read()") == "data"
        assert session.run(f"open('{shown}/data', 'w')").error is not None
    with pytest.raises(SandboxError, match=r"mounts: .*confined"):
        Sandbox(isolation="confined", python=open_python, mounts={"/data": str(shown)})


@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user has no other to be")
def test_an_interpreter_that_only_root_may_read_is_an_error(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", closed], check=True)
    tmp_path.chmod(0o700)
    with pytest.raises(IsolationError) as caught:
        Sandbox(isolation="confined", python=str(closed / "bin" / "python"))
    assert (caught.value.tier, caught.value.step) == ("confined", "interpreter")
    assert caught.value.remedy


def test_every_rule_has_a_reason() -> None:
    assert all(grant.reason for grant in landlock.CONFINED)
    assert not any(grant.files & landlock.FileAccess.MAKE_REG for grant in landlock.CONFINED)


def test_the_filter_comes_last_and_landlock_after_the_last_change_of_user() -> None:
    names = [step.name for step in CONFINED_WORKER]
    assert names[-2:] == ["Landlock", "seccomp"]
    order = ["code user", "capabilities", "no new privileges", "memory access", "Landlock"]
    assert [name for name in names if name in order] == order
    assert names.index("code user") < names.index("parent death signal")
    assert "orphans" in [step.name for step in CONFINED_INIT]


def test_the_host_is_not_reachable_by_network(session: Session) -> None:
    with socket.socket() as tcp:
        tcp.bind(("127.0.0.1", 0))
        tcp.listen()
        code = f"import socket\nsocket.create_connection(('127.0.0.1', {tcp.getsockname()[1]}), 5)"
        error = session.run(code).error
    assert error is not None


STORM = """
import os, time
while True:
    try:
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0: time.sleep(600)
            os._exit(0)
    except OSError: pass
"""


def test_a_storm_of_daemons_is_named_by_processes_though_it_takes_memory_too(
    open_python: str,
) -> None:
    limits = Limits(timeout=PATIENCE, memory="64MiB", processes=200)
    with (
        Sandbox(isolation="confined", python=open_python, limits=limits) as sandbox,
        sandbox.session() as session,
    ):
        outcome = session.run(STORM)
        assert isinstance(outcome, Killed)
        assert outcome.reason == "processes"
        outcome = session.run(
            "block = bytearray(b'x') * (40 << 20)\nother = [block * 1, block * 1]"
        )
        assert outcome.error is None or outcome.error.type == "MemoryError"
