"""The end of sessions: with the host, the template, or a call to close."""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from repl_sandbox import (
    AsyncSandbox,
    Finished,
    Sandbox,
    SandboxClosed,
    SandboxError,
    Session,
    SessionClosed,
)
from repl_sandbox.host import zygote as interpreter
from repl_sandbox.protocol import control
from tests.descriptors import opened
from tests.internals import set_leave_timeout
from tests.security.ends.watched_hosts import HOST, family, host, started, watched, zygote_of
from tests.waiting import PATIENCE, eventually

# Of the three sessions, one is of a sandbox with objects, and one of a sandbox made from that.
SHARED = HOST.replace(
    "sessions = [sandbox.session() for _ in range(3)]",
    """
one = sandbox.with_shared(text="x" * 1_000_000)
two = one.with_shared(more=[1])
sessions = [each.session() for each in (sandbox, one, two)]
""",
)


@pytest.mark.parametrize(
    "end",
    ["", "sandbox.close()", "os._exit(0)", "del one, two, sandbox, sessions", "os.kill(0, 9)"],
    ids=["end of script", "sandbox closed", "os._exit", "handles dropped", "killed"],
)
@pytest.mark.parametrize("tier", ["jailed", "confined"])
def test_templates_of_shared_objects_end_with_the_host(
    end: str, tier: str, open_python: str
) -> None:
    python = "None" if tier == "jailed" else repr(open_python)
    script = SHARED.format(end=end, arguments=f"isolation={tier!r}, python={python}")
    with started(script) as process, watched(family(process)) as watch:
        process.communicate("\n", timeout=PATIENCE)
        assert watch.left() == set()


@pytest.mark.parametrize("arguments", ["", "ready=2"])
def test_a_host_that_is_killed_leaves_no_process(arguments: str) -> None:
    with host(arguments=arguments) as process, watched(family(process)) as watch:
        process.kill()
        assert watch.left() == set()


@pytest.mark.parametrize(
    "end",
    ["", "sandbox.close()", "sessions[0].close()", "os._exit(0)", "del sandbox, sessions"],
    ids=["end of script", "sandbox closed", "one session closed", "os._exit", "handles dropped"],
)
def test_a_host_that_ends_leaves_no_process_and_is_not_delayed(end: str) -> None:
    with host(end) as process, watched(family(process)) as watch:
        _, errors = process.communicate("\n", timeout=PATIENCE)
        assert (process.returncode, errors) == (0, "")
        assert watch.left() == set()


@pytest.mark.parametrize("answered", [False, True])
@pytest.mark.parametrize("preload", [[], ["no_such_module_anywhere"]])
def test_a_zygote_whose_host_ended_early_ends_silently(
    preload: list[str], answered: bool, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    ours, theirs = control.pair()
    with theirs:
        process = interpreter.start(sys.executable, "process", None, theirs.fileno())
    with ours:
        asked = {"number": 1, "preload": preload, "mounts": {}, "policy": None}
        control.send(ours, {**asked, "place": str(tmp_path)})
        if answered:
            assert select.select([ours], [], [], PATIENCE)[0]
    process.wait(PATIENCE)
    assert (capfd.readouterr().err, list(tmp_path.iterdir())) == ("", [])


@pytest.mark.skipif(os.geteuid() != 0, reason="has no root to give up")
@pytest.mark.parametrize("end", ["", "sandbox.close()"], ids=["end of script", "sandbox closed"])
def test_a_host_that_dropped_root_ends_its_sandbox(end: str) -> None:
    """It may no longer signal the template, nor remove its cgroups, which a later sandbox does."""
    with host(f"os.setuid(65534)\n{end}") as process, watched(family(process)) as watch:
        _, errors = process.communicate("\n", timeout=PATIENCE)
        assert (process.returncode, errors) == (0, "")
        assert watch.left() == set()


def test_an_uncaught_exception_in_the_host_leaves_no_process() -> None:
    with host("raise SystemExit(3)") as process, watched(family(process)) as watch:
        process.communicate("\n", timeout=PATIENCE)
        assert process.returncode == 3
        assert watch.left() == set()


def test_the_thread_that_made_a_sandbox_may_end() -> None:
    """PR_SET_PDEATHSIG would take the end of that thread for the end of the host."""
    made: list[Sandbox] = []
    maker = threading.Thread(target=lambda: made.append(Sandbox()))
    maker.start()
    maker.join()
    with made[0] as sandbox, sandbox.session() as session:
        assert session.run("6 * 7").value == "42"


def test_without_its_zygote_a_sandbox_refuses_sessions() -> None:
    with Sandbox() as sandbox, sandbox.session() as session:
        assert session.run("1").ok
        zygote = zygote_of(sandbox)
        with watched(zygote.children(recursive=True)) as watch:
            zygote.kill()
            assert watch.left() == set()
        with pytest.raises(SandboxError):
            session.run("1")
        with pytest.raises(SandboxError):
            sandbox.session()
        # And leaving both contexts is no error.


# Is killed when it has cloned a session, and before it has written the session's id maps.
KILLED_BETWEEN = """
import importlib.util, os, signal, sys
spec = importlib.util.spec_from_file_location("boot", {boot!r})
boot = importlib.util.module_from_spec(spec)
spec.loader.exec_module(boot)
boot._load_package()
from repl_sandbox.zygote.spawn import SessionSpawner
SessionSpawner._write_id_maps = lambda *arguments: os.kill(os.getpid(), signal.SIGKILL)
boot._main(int(sys.argv[1]), sys.argv[2], inside=len(sys.argv) > 3)
"""


def test_a_session_whose_zygote_dies_before_its_id_maps_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    boot = tmp_path / "boot.py"
    boot.write_text(KILLED_BETWEEN.format(boot=interpreter.BOOT))
    monkeypatch.setattr(interpreter, "BOOT", str(boot))
    with pytest.raises(SandboxError):
        Sandbox(isolation="jailed")

    def left() -> list[psutil.Process]:
        every = psutil.process_iter(["cmdline"])
        return [each for each in every if str(boot) in (each.info["cmdline"] or ())]

    eventually(lambda: not left(), left)


# Is killed when it has forked a session, if there is a file "kill", and before that is bound to it.
KILLED_AFTER = """
import importlib.util, os, signal, struct, sys
spec = importlib.util.spec_from_file_location("boot", {boot!r})
boot = importlib.util.module_from_spec(spec)
spec.loader.exec_module(boot)
boot._load_package()
from repl_sandbox.jail import processes
from repl_sandbox.native import libc
from repl_sandbox.zygote.spawn import SessionSpawner

kill = {kill!r}
spawn, bind = SessionSpawner.spawn, processes.die_with_parent_rows
libc._NUMBERS["nanosleep"] = 35, 101

def spawn_and_die(self, *arguments):
    spawn(self, *arguments)
    if os.path.exists(kill):
        os.kill(os.getpid(), signal.SIGKILL)

def be_late(*by):
    if os.path.exists(kill):  # seconds, in the process that is forked
        yield libc.call("nanosleep", struct.pack("qq", 3, 0), 0)
    yield from bind(*by)

SessionSpawner.spawn, processes.die_with_parent_rows = spawn_and_die, be_late
boot._main(int(sys.argv[1]), sys.argv[2], inside=len(sys.argv) > 3)
"""


def test_a_session_whose_zygote_died_before_binding_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No process could end such a session."""
    boot, kill = tmp_path / "boot.py", tmp_path / "kill"
    boot.write_text(KILLED_AFTER.format(boot=interpreter.BOOT, kill=str(kill)))
    monkeypatch.setattr(interpreter, "BOOT", str(boot))
    with Sandbox(isolation="process") as sandbox:
        sandbox.session().close()
        zygote = zygote_of(sandbox).pid
        kill.touch()
        with pytest.raises(SandboxClosed):
            sandbox.session()

        def left() -> list[psutil.Process]:
            every = psutil.process_iter(["cmdline", "pid"])
            named = [each for each in every if str(boot) in (each.info["cmdline"] or ())]
            return [each for each in named if each.pid != zygote]

        eventually(lambda: not left(), left)


def _run_in_thread(session: Session) -> tuple[threading.Thread, list[Any]]:
    """Start a cell that takes long in a thread; when this returns, it runs."""
    result: list[Any] = []
    running = threading.Event()

    def run() -> None:
        try:
            result.append(
                session.run(
                    "import time\nprint('on', flush=True)\ntime.sleep(1000)",
                    timeout=1000,
                    on_output=lambda name, text: running.set(),
                )
            )
        # The test reports the expected exception.
        except Exception as error:  # noqa: BLE001
            result.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert running.wait(PATIENCE)
    return thread, result


@pytest.mark.parametrize("what", ["session", "sandbox"])
def test_closing_ends_a_cell_that_runs_in_another_thread(what: str) -> None:
    with Sandbox() as sandbox:
        session = sandbox.session()
        thread, result = _run_in_thread(session)
        with watched(zygote_of(sandbox).children(recursive=True)) as watch:
            (session if what == "session" else sandbox).close()
            assert watch.left() == set()
        thread.join(PATIENCE)
        assert not thread.is_alive()
        assert isinstance(result[0], SessionClosed)


def test_a_session_that_is_closed_within_its_own_cell_leaves_no_descriptor(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that closes the session is the cell's caller, and must not wait for itself."""
    set_leave_timeout(monkeypatch, 10_000.0)
    with sandbox.session(host={"double": lambda x: 2 * x}) as session:
        session.run("1")
    before = opened("self")
    session = sandbox.session(host={"double": lambda x: 2 * x})
    with pytest.raises(SessionClosed):
        session.run(
            "import time\nprint('on', flush=True)\ntime.sleep(1000)",
            on_output=lambda stream, text: session.close(),
        )
    eventually(lambda: len(opened("self")) == len(before))  # a watchdog has files open for moments


def test_closing_a_running_session_does_not_affect_one_opened_at_once(sandbox: Sandbox) -> None:
    """The next session gets descriptors with the same numbers."""
    for number in range(20):
        old = sandbox.session()
        thread, result = _run_in_thread(old)
        old.close()
        with sandbox.session() as new:
            outcome = new.run(f"print('new {number}')\n{number}")
        thread.join(PATIENCE)
        assert isinstance(result[0], SessionClosed)
        assert (outcome.stdout, outcome.value) == (f"new {number}\n", str(number))


def test_a_sandbox_and_a_session_may_be_closed_twice() -> None:
    sandbox = Sandbox()
    session = sandbox.session()
    for handle in (session, session, sandbox, sandbox, session):
        handle.close()
    with pytest.raises(SessionClosed):
        session.run("1")
    with pytest.raises(SandboxClosed):
        sandbox.session()


def test_handles_cannot_be_pickled(sandbox: Sandbox, session: Session) -> None:
    for handle in (sandbox, session, AsyncSandbox()):
        with pytest.raises(TypeError):
            pickle.dumps(handle)


def test_ctrl_c_while_a_session_starts_does_not_affect_the_next_ones() -> None:
    """The answer to the request that was given up comes later; it must not pass for another's."""
    with Sandbox() as sandbox:
        zygote = zygote_of(sandbox)
        zygote.suspend()
        previous = signal.signal(signal.SIGALRM, _ctrl_c)
        try:
            with pytest.raises(KeyboardInterrupt):
                _session_until_an_alarm(sandbox)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, previous)
            zygote.resume()
        try:
            one, two = sandbox.session(), sandbox.session()
        except SandboxError:
            return  # refusing to go on is as good
        two.close()
        assert one.run("6 * 7").value == "42"
        assert len(zygote.children()) == 1
        one.close()
        assert zygote.children() == []


def test_a_session_cancelled_as_it_starts_leaves_no_descriptor(sandbox: Sandbox) -> None:
    """Among them that by which replies of functions of the host wake who waits."""

    def wakes() -> int:
        links = [Path(f"/proc/self/fd/{name}") for name in opened("self")]
        return sum("eventfd" in str(link.readlink()) for link in links if link.is_symlink())

    before, zygote = wakes(), zygote_of(sandbox)
    zygote.suspend()
    previous = signal.signal(signal.SIGALRM, _ctrl_c)
    try:
        with pytest.raises(KeyboardInterrupt):
            _session_until_an_alarm(sandbox, host={"double": lambda x: 2 * x})
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
        zygote.resume()
    assert wakes() == before


def _session_until_an_alarm(sandbox: Sandbox, **arguments: Any) -> None:
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    sandbox.session(**arguments)


def _ctrl_c(signum: int, frame: object) -> None:
    raise KeyboardInterrupt


def test_a_preload_that_leaves_a_thread_is_refused(venv: Callable[[dict[str, str]], str]) -> None:
    python = venv(
        {
            "threaded.py": "import threading, time\n"
            "threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()\n",
            "calm.py": "value = 42\n",
        }
    )
    with Sandbox(python=python, preload=["calm"]) as sandbox, sandbox.session() as session:
        assert session.run("import calm\ncalm.value").value == "42"
    with pytest.raises(SandboxError, match="threaded"):
        Sandbox(python=python, preload=["threaded"])


def test_a_preload_that_ends_its_process_is_an_error(venv: Callable[[dict[str, str]], str]) -> None:
    python = venv({"gone.py": "import os\nos._exit(0)\n", "leaves.py": "raise SystemExit\n"})
    for name in ("gone", "leaves"):
        with pytest.raises(SandboxError):
            Sandbox(python=python, preload=[name])


@pytest.fixture
def venv(tmp_path: Path) -> Callable[[dict[str, str]], str]:
    """Makes a virtual environment with some modules; returns its interpreter."""

    def make(modules: dict[str, str]) -> str:
        import venv as venv_module

        folder = tmp_path / "venv"
        venv_module.EnvBuilder(symlinks=True, with_pip=False).create(folder)
        (packages,) = folder.glob("lib/python3*/site-packages")
        for name, text in modules.items():
            (packages / name).write_text(text)
        for part in (tmp_path, *tmp_path.parents):
            if part.stat().st_uid == os.geteuid() and part != Path("/tmp"):
                part.chmod(part.stat().st_mode | 0o055)
            if part == Path("/tmp"):
                break
        return str(folder / "bin" / "python")

    return make


def test_a_session_whose_worker_is_stopped_or_killed_from_outside_goes_on(
    sandbox: Sandbox, session: Session
) -> None:
    assert isinstance(session.run("x = 1"), Finished)
    zygote = zygote_of(sandbox)
    # A snapshot in progress exists at the next check, and none is begun after the first.
    while workers := [worker for init in zygote.children() for worker in init.children()]:
        for worker in workers:
            with contextlib.suppress(psutil.NoSuchProcess):
                worker.kill()
    # Its snapshots are children of init as well.
    assert session.run("1 + 1").state == "restarted"
    assert session.run("1 + 1").value == "2"
