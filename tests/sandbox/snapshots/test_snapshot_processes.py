"""The snapshot of a worker is invisible to the session's code, and never fatal."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from repl_sandbox import (
    CheckpointError,
    Finished,
    Killed,
    Limits,
    Sandbox,
    SandboxError,
    Session,
)
from tests.internals import init_pid, worker_pid
from tests.sandbox.conftest import PATIENT
from tests.waiting import LONG, eventually


def value(session: Session, code: str) -> str | None:
    """Return the value that `code` shows in a session that has snapshots."""
    session.run("import os, signal, time\nx = 1")
    outcome = session.run(code)
    assert isinstance(outcome, Finished), outcome
    return outcome.value


# Each would reveal, or end, a snapshot that were a child of the worker or shared its resources.
@pytest.mark.parametrize(
    ("code", "shown"),
    [
        (
            "try: found = os.waitpid(-1, os.WNOHANG)\nexcept ChildProcessError: found = 'none'\n"
            "found",
            "'none'",
        ),
        ("try: found = os.wait()\nexcept ChildProcessError: found = 'none'\nfound", "'none'"),
        (
            "try: found = open(f'/proc/self/task/{os.getpid()}/children').read()\n"
            "except OSError: found = ''\nfound",
            "''",
        ),
        ("signal.pthread_sigmask(signal.SIG_BLOCK, [])", "set()"),
        ("__import__('multiprocessing').active_children()", "[]"),
        ("__import__('threading').active_count()", "1"),
    ],
    ids=["waitpid", "wait", "children", "mask", "multiprocessing", "threads"],
)
def test_a_snapshot_is_no_child_of_the_code(copied: Session, code: str, shown: str) -> None:
    assert value(copied, code) == shown


def test_a_signal_to_the_process_group_does_not_reach_a_snapshot(copied: Session) -> None:
    copied.run("import os, signal\nx = 1")
    outcome = copied.run("os.killpg(0, signal.SIGKILL)")
    assert isinstance(outcome, Killed)
    assert (outcome.state, copied.get("x")) == ("rolled_back", 1)


def test_a_signal_to_all_processes_does_not_reach_a_snapshot(sandbox: Sandbox) -> None:
    with sandbox.session() as session:
        session.run("import os, signal\nx = 1")
        outcome = session.run(
            "try: os.kill(-1, signal.SIGKILL)\nexcept OSError as error: said = error.strerror\n"
            "else: said = 'sent'\nsaid"
        )
        assert outcome.value in ("'sent'", "'Operation not permitted'", "'No such process'")
        assert session.get("x") == 1


def test_the_reader_of_a_pipe_sees_the_end_when_its_last_writer_closes(copied: Session) -> None:
    copied.run("import os, select\nreading, writing = os.pipe()")
    copied.run("x = 1")
    outcome = copied.run("os.close(writing)\nos.read(reading, 1)")
    assert outcome.value == "b''"


def test_a_peer_sees_the_end_of_a_connection(copied: Session) -> None:
    copied.run("import socket\none, other = socket.socketpair()")
    copied.run("x = 1")
    assert copied.run("one.close()\nother.recv(1)").value == "b''"


def test_a_lock_on_a_file_ends_with_the_file(copied: Session) -> None:
    copied.run("import fcntl\nfile = open('lock', 'w')\nfcntl.flock(file, fcntl.LOCK_EX)")
    copied.run("x = 1")
    outcome = copied.run(
        "file.close()\nagain = open('lock', 'w')\n"
        "fcntl.flock(again, fcntl.LOCK_EX | fcntl.LOCK_NB)\n'locked'"
    )
    assert outcome.value == "'locked'"


def test_handlers_of_sigchld_are_not_invoked_by_snapshots(copied: Session) -> None:
    copied.run(
        "import signal, threading\ncalls = []\n"
        "signal.signal(signal.SIGCHLD, lambda *_: calls.append(1))\n"
        # With a thread the snapshot is taken by another path.
        "end = threading.Event()\nthreading.Thread(target=end.wait).start()"
    )
    copied.run("x = 1")
    assert copied.run("end.set(); calls").value == "[]"


def test_a_wakeup_descriptor_receives_nothing(copied: Session) -> None:
    copied.run(
        "import os, signal\nreading, writing = os.pipe2(os.O_NONBLOCK)\n"
        "signal.signal(signal.SIGCHLD, lambda *_: None)\nsignal.set_wakeup_fd(writing)"
    )
    copied.run("x = 1")
    outcome = copied.run(
        "try: heard = os.read(reading, 10)\nexcept BlockingIOError: heard = b''\nheard"
    )
    assert outcome.value == "b''"


def test_a_snapshot_writes_nothing(copied: Session) -> None:
    copied.run("import sys\nsys.stdout.reconfigure(line_buffering=False)")
    copied.run("import os\nprint('once', end='')")
    for _ in range(3):
        outcome = copied.run("os._exit(1)")
        assert (outcome.stdout, outcome.stderr) == ("", "")
    assert copied.run("pass").stdout == ""


def test_buffered_output_is_written_once(copied: Session) -> None:
    copied.run("file = open('log', 'w')\nfile.write('a')")
    copied.run("import os\nos._exit(1)")
    copied.run("file.write('b'); file.close()")
    assert copied.run("open('log').read()").value == "'ab'"


def test_recovery_time_does_not_depend_on_the_number_of_snapshots(
    copied: Session,
) -> None:
    for number in range(50):
        copied.run(f"x = {number}")
    assert copied.run("import os; os._exit(1)").state == "rolled_back"
    assert copied.get("x") == 49


# ── where there is no room for one ────────────────────────────────────────────────────────────


def test_at_the_process_limit_the_older_snapshot_is_used(
    sandbox: Sandbox,
) -> None:
    with sandbox.session(limits=Limits(processes=8, timeout=60)) as session:
        if session.isolation.tier == "confined":
            pytest.skip("there the watchdog may end a session of too many processes first")
        session.run("import os, signal\nx = 1")
        outcome = session.run(
            "x = 2\nchildren = []\ntry:\n    while True:\n        pid = os.fork()\n"
            "        if not pid: signal.pause()\n        children.append(pid)\n"
            "except OSError: pass\nlen(children) > 0"
        )
        assert outcome.value == "True"
        assert session.run("x").value == "2"
        outcome = session.run("os._exit(1)")
        assert outcome.state == "rolled_back"
        # The number of cells with room for a snapshot depends on the counted processes.
        restored = session.get("x")
        assert restored == 2 or any("no later snapshot was made" in name for name in outcome.lost)
        assert session.run("x + 1").ok


def test_at_the_limit_of_descriptors_nothing_is_fatal(copied: Session) -> None:
    copied.run("import os\nx = 1")
    outcome = copied.run(
        "files = []\ntry:\n    while True: files.append(os.open('/dev/null', os.O_RDONLY))\n"
        "except OSError: pass\nx = 2\nlen(files) > 20"
    )
    assert outcome.value == "True"
    assert copied.run("x").value == "2"
    outcome = copied.run("os._exit(1)")
    assert outcome.state == "rolled_back"
    assert copied.get("x") in (1, 2)
    assert copied.run("6 * 7").value == "42"


def test_a_received_descriptor_is_refused_at_the_limit(copied: Session) -> None:
    copied.run(
        "import os\nfiles = []\ntry:\n    while True: files.append(os.open('/dev/null', 0))\n"
        "except OSError: pass"
    )
    with pytest.raises(SandboxError, match=r"large: .* no room .* Too many open files"):
        copied.set("large", "a" * 10_000_000)
    with pytest.raises(CheckpointError, match="Too many open files"):
        copied.checkpoint()
    # And it is still the same process.
    assert copied.run("for _ in range(9): os.close(files.pop())").lost == ()
    copied.set("large", "a" * 10_000_000)
    assert copied.run("len(large)").value == "10000000"


def test_at_the_limit_of_memory_nothing_is_fatal(copied: Session) -> None:
    copied.run("import os\nx = 1")
    copied.run("held = bytearray(os.urandom(1 << 20)) * 120")
    outcome = copied.run("held[::4096] = held[::4096]\nx = 2")
    assert isinstance(outcome, Finished)
    assert copied.run("os._exit(1)").state == "rolled_back"
    assert copied.get("x") == 2


@pytest.mark.parametrize(
    "code",
    [
        "import os; os.getpid = os.sysconf = os.stat = os.listdir = None",
        "import socket; socket.recv_fds = socket.send_fds = None",
        "import gc; gc.disable(); gc.get_objects = None",
        "import signal; signal.pthread_sigmask = signal.sigwait = None",
        "import builtins; builtins.len = builtins.max = builtins.sorted = None",
        "import threading; threading.enumerate = threading.main_thread = None",
        "import struct; struct.Struct = None",
    ],
)
def test_modules_replaced_by_the_code_do_not_break_the_session(copied: Session, code: str) -> None:
    """The engine may lack the functions that it takes from these modules; the session goes on."""
    copied.run("x = 1")
    copied.run(code)
    assert copied.run("x").value == "1"
    outcome = copied.run("import ctypes; ctypes.string_at(0)")
    assert isinstance(outcome, Killed)
    assert outcome.state in ("rolled_back", "restarted")
    if outcome.state == "rolled_back":
        assert copied.run("x").value == "1"
    assert copied.run("6 * 7").value == "42"


# ── beside threads ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "work",
    [
        "zlib.compress(bytes(1 << 16))",
        "hashlib.sha256(bytes(1 << 16)).digest()",
        "[bytearray(n) for n in range(1, 20000, 37)]",
        "ctypes.CDLL(None).free(ctypes.CDLL(None).malloc(100))",
        "open('/dev/null').close()",
    ],
)
def test_a_snapshot_taken_while_threads_are_in_c_code_can_take_over(
    copied: Session, work: str
) -> None:
    if "free" in work:
        work = "libc.free(ctypes.c_void_p(libc.malloc(100)))"
    copied.run(
        "import ctypes, hashlib, os, threading, zlib\n"
        "libc = ctypes.CDLL(None)\nlibc.malloc.restype = ctypes.c_void_p\nn = 0\n"
        f"def work():\n    while True: {work}\n"
        "for _ in range(4): threading.Thread(target=work, daemon=True).start()"
    )
    for number in range(5):
        assert copied.run(f"n = {number}").ok
    outcome = copied.run("os._exit(1)")
    assert outcome.state == "rolled_back"
    assert sum("thread" in name for name in outcome.lost) == 4
    code = "import zlib\nn, len(zlib.decompress(zlib.compress(bytes(1 << 20)))), libc.malloc(9) > 0"
    assert copied.run(code).value == "(4, 1048576, True)"


def test_threads_of_numpy_do_not_prevent_a_snapshot(open_python: str) -> None:
    pytest.importorskip("numpy")
    with (
        Sandbox(isolation="jailed", preload=["numpy"], limits=PATIENT) as sandbox,
        sandbox.session() as session,
    ):
        session.run(
            "import numpy, os, threading\na = numpy.random.rand(200, 200)\n"
            # Amid a product one may hold a lock of OpenBLAS's for good (docs/design/recovery.md).
            "used = threading.Barrier(4)\n"
            "def work():\n    a @ a; used.wait()\n    while True: a + a\n"
            "for _ in range(3): threading.Thread(target=work, daemon=True).start()\n"
            "used.wait()"
        )
        for _ in range(5):
            assert session.run("b = a.sum()").ok
        assert session.run("os._exit(1)").state == "rolled_back"
        assert session.run("bool((a @ a).sum() > 0)").value == "True"


def test_locks_are_usable_after_a_fork_and_a_lock_held_by_a_thread_stays_locked(
    copied: Session,
) -> None:
    copied.run(
        "import os, threading\nheld, free = threading.Lock(), threading.Lock()\n"
        "taken, end = threading.Event(), threading.Event()\n"
        "def hold():\n    with held: taken.set(); end.wait()\n"
        "threading.Thread(target=hold, name='holder').start()\ntaken.wait()"
    )
    outcome = copied.run("os._exit(1)")
    assert outcome.lost == ("thread 'holder'",)
    code = (
        "new = threading.Lock()\n"
        "(held.acquire(timeout=0.05), free.acquire(timeout=60), new.acquire(timeout=60))"
    )
    assert copied.run(code).value == "(False, True, True)"
    code = (
        "done = []\nt = threading.Thread(target=done.append, args=(1,))\nt.start(); t.join(); done"
    )
    assert copied.run(code).value == "[1]"


def test_a_hook_that_does_not_end_costs_the_snapshot_and_nothing_else(sandbox: Sandbox) -> None:
    with sandbox.session() as session:
        session.run("import os, threading\nx = 1")
        session.run(
            "threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
            "os.register_at_fork(after_in_child=threading.Event().wait)"
        )
        assert session.run("x = 2; x").value == "2"
        outcome = session.run("os._exit(1)")
        assert outcome.state == "rolled_back"
        assert outcome.lost == ("the effects of cells 2 to 3: no later snapshot was made",)
        assert session.get("x") == 1


def test_random_numbers_go_on_as_they_would_have(copied: Session) -> None:
    copied.run("import os, random, threading\nrandom.seed(1)")
    copied.run("threading.Thread(target=threading.Event().wait, daemon=True).start()")
    expected = copied.run("random.random()").value
    copied.rollback()
    assert copied.run("random.random()").value == expected


WAITING_THREAD = """
import threading
threading.Thread(target=threading.Event().wait, daemon=True).start()
"""


@pytest.mark.parametrize("number", ["SIGTERM", "SIGHUP", "SIGINT", "SIGALRM", "SIGUSR1", "SIGUSR2"])
@pytest.mark.parametrize("held", ["", "file = open('notes', 'w')", WAITING_THREAD])
def test_a_signal_of_the_code_does_not_end_a_snapshot(
    copied: Session, held: str, number: str
) -> None:
    # A snapshot is in its worker's session (setsid(2)); processes of other sessions are excluded.
    code = f"""
import contextlib, os, signal, threading
threads = {{thread.native_id for thread in threading.enumerate()}}  # can be signalled as well
for pid in range(max(2, os.getpid() - 100), os.getpid() + 100):
    with contextlib.suppress(ProcessLookupError):
        if pid not in {{os.getpid(), *threads}} and os.getsid(pid) == os.getsid(0):
            os.kill(pid, signal.{number})
os._exit(1)
"""
    copied.run(f"x = 7\n{held}")
    for _ in range(3):  # the last two snapshots are of workers that have taken over
        assert copied.run(code).state == "rolled_back"
        assert copied.run("x").value == "7"


# Snapshots of a worker without open files, by forks that record the contents of the table
# meanwhile. Prints the record of the last cell, and the table after it.
_NAMED = """
import json, os, socket, sys
from repl_sandbox.worker.snapshots import SnapshotProcesses
from repl_sandbox.worker.snapshots import SnapshotResources
from repl_sandbox.worker.snapshot_table import SnapshotTable

os.closerange(3, 100)  # as in a session; libffi holds one from 3.5 on
table, seen = SnapshotTable(), []
init_socket, init = socket.socketpair()
init.sendall(b"k" * 8)
worker = os.dup2(init.detach(), 500)
os.close(4)
numbers = iter(range(1 << 22, 1 << 23))  # of no process: the largest is less

def fork(*_):
    seen.append(table.read())
    return next(numbers)

folders = sys.argv[1], sys.argv[1], 'branch-', list
resources = SnapshotResources(table, init_socket, {kept}, *folders, fork, fork, {quiet})
snapshots = SnapshotProcesses(resources, worker)
for snapshots.cell in {cells}:
    seen.clear()
    snapshots.make()
print(json.dumps([[cell for _, cell in rows] for rows in (*seen, table.read())]))
"""


@pytest.mark.parametrize("quiet", ["fork", "None"])
@pytest.mark.parametrize(
    ("kept", "cells", "named"),
    [
        (1, [1, 2, 3], [[1, 2], [2, 3]]),
        (1, [1, 2, 2], [[1, 2], [1, 2]]),
        (0, [1, 2], [[1], [2]]),
        (1, [1, 2], [[1], [1, 2]]),
    ],
    ids=["of another cell", "of the same", "the only one", "a new one"],
)
def test_a_snapshot_is_valid_until_the_next_one(
    quiet: str, kept: int, cells: list[int], named: list[list[int]], tmp_path: Path
) -> None:
    """So that a worker that is killed meanwhile loses no state."""
    script = _NAMED.format(quiet=quiet, kept=kept, cells=cells)
    run = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        capture_output=True,
        check=False,
        timeout=LONG,
    )
    assert run.returncode == 0, run.stderr.decode()
    assert json.loads(run.stdout) == named


# After the snapshot is taken a worker waits without Python (`jail.quiet_fork`).


def _waits(pid: int) -> bool:
    """Whether a process blocks the signal that only snapshots block: the highest, bit 63."""
    status = Path(f"/proc/{pid}/status").read_text()
    return bool(int(status.split("SigBlk:")[1].split()[0], 16) >> 63)


def _copy(session: Session) -> int:
    """The process id of the snapshot, or 0 if there is none yet."""
    init, worker = init_pid(session), worker_pid(session)
    children = Path(f"/proc/{init}/task/{init}/children").read_text().split()
    return next((pid for pid in map(int, children) if pid != worker and _waits(pid)), 0)


@pytest.mark.skipif(os.geteuid() != 0, reason="the processes of a session hide their memory")
@pytest.mark.parametrize("cells", [1, 4], ids=["at leisure", "in a hurry"])
def test_the_state_of_an_idle_session_is_in_memory_once(cells: int) -> None:
    """Python would write to a hundred pages after the fork, which both have then."""

    def is_shared() -> bool:
        copy = _copy(session)
        return copy > 0 and all(_own_kilobytes(pid) < 160 for pid in (copy, worker))

    with Sandbox(isolation="jailed", history=0) as sandbox, sandbox.session() as session:
        worker = worker_pid(session)
        for number in range(cells):
            session.run(f"x = {number}")
        eventually(is_shared)
        assert not _waits(worker)
        assert session.run("import os; os._exit(1)").state == "rolled_back"
        assert session.run("x").value == str(cells - 1)


def _own_kilobytes(pid: int) -> int:
    try:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except (FileNotFoundError, ProcessLookupError):  # another snapshot has its place
        return sys.maxsize
    return int(rollup.split("Private_Dirty:")[1].split()[0])


def test_signal_handlers_run_while_a_session_is_idle() -> None:
    code = (
        "import signal\n"
        "def ring(*_): open('rang', 'w').close()\n"
        "signal.signal(signal.SIGALRM, ring)\n"
        "_ = signal.setitimer(signal.ITIMER_REAL, 0.2)"
    )
    with Sandbox() as sandbox, sandbox.session() as session:
        assert session.run(code).ok
        eventually(lambda: [file.path for file in session.files.list()] == ["rang"])
        assert session.run("1 + 1").value == "2"
