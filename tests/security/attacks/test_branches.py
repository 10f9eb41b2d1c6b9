"""Code that impersonates or stops a snapshot of its worker affects its own session alone."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import psutil
import pytest

from repl_sandbox import Finished, Limits, Sandbox, SandboxError, Session
from tests.internals import init_pid, worker_pid, zygote_pid
from tests.waiting import PATIENCE, comes_to, eventually

TIERS = ["jailed", "confined"]

# Machinery that code finds in its own process: init's channel to the snapshots, and their table.
FOUND = """
import ctypes, gc, mmap, os, signal, socket, struct, threading, time
WORD, ROW = struct.Struct("=Bq"), struct.Struct("=iq")
def worker():
    return next(o for o in gc.get_objects() if type(o).__name__ == "BranchFork")
snapshots = worker()
init_socket = snapshots._sockets.init
table = snapshots._resources.table
"""


def alive_under(pid: int) -> list[psutil.Process]:
    """The children of a process that run; the dead ones may vanish while they are looked at."""
    alive = []
    for child in psutil.Process(pid).children():
        with suppress(psutil.NoSuchProcess):
            if child.status() != psutil.STATUS_ZOMBIE:
                alive.append(child)
    return alive


@pytest.fixture
def neighbour(sandbox: Sandbox) -> Iterator[Session]:
    with sandbox.session() as session:
        session.run("x = 'mine'")
        yield session


def found(session: Session) -> None:
    """Give code of the session the pids of its snapshots."""
    for code in (FOUND, "x = 1"):
        outcome = session.run(code)
        assert isinstance(outcome, Finished), outcome


def started(session: Session, thread: str) -> None:
    """Start `thread`, a function that notes in `said` the outcome of each attempt; one has come."""
    outcome = session.run(
        f"said = set()\n{thread}\nthreading.Thread(target=attack, daemon=True).start()\n"
        "while not said: time.sleep(0.001)\nprint('PROOF', said, flush=True)"
    )
    assert outcome.stdout.startswith("PROOF"), outcome


def branches_or_says_no(session: Session) -> None:
    """After any attack init answers in time, and the session goes on or reports its end."""
    start = time.monotonic()
    try:
        with session.branch() as branch:
            branch.run("1")
    except SandboxError:
        pass
    # The host's timeouts cover a request, init and the branch, on a machine that stalls.
    assert time.monotonic() - start < 2 * PATIENCE


def unharmed(neighbour: Session, bystander: subprocess.Popen[bytes]) -> None:
    assert neighbour.run("x").value == "'mine'"
    with neighbour.branch() as branch:
        assert branch.run("x").value == "'mine'"
    assert bystander.poll() is None


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    """A process of the host's user."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


NAMES = {
    "init": "1",
    "parent": "os.getppid()",
    "nobody": "-1",
    "all": "0",
    "huge": "2 ** 40",
    "itself": "os.getpid()",
    "copy": "snapshots._rows[-1][0] if snapshots._rows else 1",
    "of the host": "{bystander}",
    "of another session": "{neighbour}",
}


@pytest.mark.parametrize("name", NAMES)
def test_forged_messages_of_a_snapshot(
    session: Session,
    neighbour: Session,
    bystander: subprocess.Popen[bytes],
    name: str,
) -> None:
    pid = NAMES[name].format(bystander=bystander.pid, neighbour=worker_pid(neighbour))
    found(session)
    # A thread sends it repeatedly, and reads the messages of init before a snapshot can.
    forging = (
        f"pid = {pid}\ndef attack():\n    end = socket.socket(fileno=os.dup(init_socket))\n"
        "    while True:\n"
        "        for attempt in (\n"
        "            lambda: end.send(WORD.pack(1, pid), socket.MSG_DONTWAIT),\n"
        "            lambda: socket.recv_fds(end, 4096, 8, socket.MSG_DONTWAIT),\n"
        "        ):\n"
        "            try: attempt(); said.add('done')\n"
        "            except OSError as error: said.add(error.strerror)\n"
        "        time.sleep(0.0005)"
    )
    started(session, forging)
    for _ in range(2):
        branches_or_says_no(session)
    unharmed(neighbour, bystander)


@pytest.mark.parametrize("name", NAMES)
def test_a_snapshot_table_with_foreign_processes(
    session: Session,
    neighbour: Session,
    bystander: subprocess.Popen[bytes],
    name: str,
) -> None:
    pid = NAMES[name].format(bystander=bystander.pid, neighbour=worker_pid(neighbour))
    found(session)
    lying = (
        f"pid = max(-(2 ** 31), min(2 ** 31 - 1, {pid}))\ndef attack():\n    while True:\n"
        "        table.write([(pid, cell) for cell in range(20)])\n"
        "        said.add(len(table.read()))\n        time.sleep(0.0005)"
    )
    started(session, lying)
    branches_or_says_no(session)
    try:
        session.run("os._exit(1)")
        session.run("1")
    except SandboxError:
        pass
    unharmed(neighbour, bystander)


STRIKES = {
    "copies": "def attack():\n    while True:\n        for pid, _ in table.read():\n"
    "            try: os.kill(pid, number); said.add('done')\n"
    "            except OSError as error: said.add(error.strerror)\n",
    # The worker calls `_inspect` after its answer, while it waits for init's command.
    "worker": "def attack():\n    assert callable(snapshots._inspect)\n"
    "    snapshots._inspect = lambda: os.kill(os.getpid(), number)\n    said.add('done')",
}


@pytest.mark.parametrize("number", ["SIGSTOP", "SIGKILL"])
@pytest.mark.parametrize("struck", STRIKES)
def test_snapshots_or_a_worker_that_are_stopped_or_killed(
    session: Session,
    neighbour: Session,
    bystander: subprocess.Popen[bytes],
    number: str,
    struck: str,
) -> None:
    found(session)
    started(session, f"number = signal.{number}\n{STRIKES[struck]}")
    branches_or_says_no(session)
    unharmed(neighbour, bystander)


def test_a_flood_of_messages_that_are_not_read(
    session: Session, neighbour: Session, bystander: subprocess.Popen[bytes]
) -> None:
    found(session)
    started(
        session,
        "def attack():\n    end = socket.socket(fileno=os.dup(init_socket))\n    while True:\n"
        "        said.add(end.send(WORD.pack(0, 1) * 1000))",
    )
    branches_or_says_no(session)
    unharmed(neighbour, bystander)


def test_the_table_of_a_branch_is_in_no_file_that_the_code_has(
    session: Session, neighbour: Session, bystander: subprocess.Popen[bytes]
) -> None:
    """Init reads it; and memory that no process has mapped counts nowhere. Code has it not."""
    session.run("x = 1")
    with session.branch() as branch:
        outcome = branch.run(
            "import os, stat\nsizes = []\nfor fd in range(3, 1000):\n"
            "    try:\n        if not stat.S_ISREG(os.fstat(fd).st_mode): continue\n"
            "    except OSError: continue\n"
            "    for size in (1 << 20, 0):\n        try: os.ftruncate(fd, size)\n"
            "        except OSError: pass\n        sizes.append(os.fstat(fd).st_size)\n"
            "    try: os.pwrite(fd, b'x', 1 << 20)\n    except OSError: pass\n"
            "    sizes.append(os.fstat(fd).st_size)\nsizes"
        )
        assert isinstance(outcome, Finished), outcome
        assert branch.get("sizes") == []
        assert branch.run("os._exit(1)").state == "rolled_back"
    assert session.run("x").value == "1"
    unharmed(neighbour, bystander)


@pytest.mark.parametrize("sandbox", ["process"], indirect=True)
def test_a_flood_of_out_of_band_bytes(
    session: Session, neighbour: Session, bystander: subprocess.Popen[bytes]
) -> None:
    """A byte that makes a socket readable and that no read brings: MSG_OOB of send(2).

    The seccomp filter of the other tiers refuses to send it.
    """
    found(session)
    started(
        session,
        "def attack():\n    end = socket.socket(fileno=os.dup(init_socket))\n    while True:\n"
        "        try: said.add(end.send(b'a', socket.MSG_OOB | socket.MSG_DONTWAIT))\n"
        "        except BlockingIOError: pass\n        time.sleep(0.0002)",
    )
    for _ in range(8):
        branches_or_says_no(session)
    assert session.run("6 * 7").value == "42"
    unharmed(neighbour, bystander)


def test_processes_and_files_of_a_branch_end_with_the_session(sandbox: Sandbox) -> None:
    def below() -> list[psutil.Process]:
        return psutil.Process(zygote_pid(sandbox)).children(recursive=True)

    # A directory may still be removed, by a process of the template's, for the last session; and
    # one holds sessions of some tiers to their limit of processes.
    eventually(lambda: len(below()) <= 1)
    before = below()
    with sandbox.session() as session:
        branch = session.branch()
        outcome = branch.run(
            "import os, time\nfor _ in range(5):\n    if not os.fork():\n        os.setsid()\n"
            "        if not os.fork():\n            os.setsid()\n            time.sleep(600)\n"
            "        os._exit(0)"
        )
        assert isinstance(outcome, Finished), outcome
        branch.close()
        assert session.run("6 * 7").value == "42"
    assert comes_to(below, before) == before


def test_a_flood_of_processes_in_a_branch_ends_with_it() -> None:
    with (
        Sandbox(isolation="jailed", limits=Limits(processes=16, timeout=PATIENCE)) as sandbox,
        sandbox.session() as session,
    ):
        branch = session.branch()
        branch.run(
            "import os\ndef grow():\n    while True:\n        try: os.fork()\n"
            "        except OSError: pass\nif not os.fork(): grow()"
        )
        below = psutil.Process(init_pid(session))
        eventually(lambda: len(below.children(recursive=True)) > 8)
        branch.close()
        # A killed process exists until it has run once more.
        eventually(lambda: len(alive_under(init_pid(session))) <= 4)
        assert session.run("6 * 7").value == "42"


AS_USER = """
import json, os, subprocess, sys
from repl_sandbox import Sandbox, SandboxError

FOUND = {found!r}
LIE = '''
def lie():
    end = socket.socket(fileno=os.dup(init_socket))
    while True:
        table.write([({pid}, cell) for cell in range(20)])
        try: end.send(WORD.pack(1, {pid}), socket.MSG_DONTWAIT)
        except OSError: pass
        time.sleep(0.0005)
threading.Thread(target=lie, daemon=True).start()'''
seen = []
with (
    subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other,
    Sandbox(isolation={tier!r}) as sandbox,
):
    with sandbox.session() as session:
        session.run("x = 1\\nopen('f', 'w').write('1')")
        with session.branch() as branch:
            branch.run("x = 2\\nopen('f', 'w').write('2')")
            killed = branch.run("import os\\nos._exit(1)")
            seen += [killed.state, branch.run("x, open('f').read()").value]
        seen.append(session.run("x, open('f').read()").value)
    with sandbox.session() as session:
        seen.append(session.run(FOUND).ok)
        session.run("x = 1")
        session.run(LIE.replace("{{pid}}", str(other.pid)))
        try:
            with session.branch() as branch:
                branch.run("1")
                branch.interrupt()
            session.run("os._exit(1)")
        except SandboxError:
            pass
    seen.append(other.poll())
    other.kill()
print(json.dumps(seen))
"""


@pytest.mark.parametrize("tier", ["jailed", "confined"])
def test_an_ordinary_users_branches_and_processes(user: Callable[[str], Any], tier: str) -> None:
    """In tier confined it has the uid of the session's code: only its pid is unknown."""
    script = AS_USER.replace("{found!r}", repr(FOUND)).replace("{tier!r}", repr(tier))
    script = script.replace("{{pid}}", "PID").replace("{pid}", "PID").replace('"PID"', "'PID'")
    assert user(script) == ["rolled_back", "(2, '2')", "(1, '1')", True, None]
