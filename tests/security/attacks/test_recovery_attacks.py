"""Code that attacks its own recovery.

It can lose its recovery, but cannot affect the deadlines of the host or other sessions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from repl_sandbox import Killed, Limits, Sandbox, Session, TimedOut
from tests.internals import set_restore_timeout
from tests.waiting import PATIENCE, eventually

TIERS = ("jailed", "confined")

# The parts of the machinery that code can find from the outside of its Python names.
FIND = """
import ctypes, fcntl, gc, mmap, os, signal, socket, stat, struct, threading, time
from repl_sandbox.snapshots import snapshot_messages, snapshot_processes
worker = next(o for o in gc.get_objects() if type(o).__name__ == "BranchFork")
resources, table = worker._resources, worker._resources.table
init_socket = resources.init_socket
def keep(cell):
    return snapshot_messages.WORKER_MESSAGE.pack(snapshot_messages.KEEP, cell)
"""
# Seconds. An attack that hangs takes for ever; the speed of a busy machine is not tested.
SLACK = PATIENCE


@pytest.fixture
def session(sandbox: Sandbox) -> Iterator[Session]:
    limits = Limits(timeout=PATIENCE, grace=0.2, processes=30, workspace="64MiB", memory="400MiB")
    with sandbox.session(limits=limits) as session:
        session.run("x = 42")
        yield session


@pytest.fixture
def neighbour(sandbox: Sandbox) -> Iterator[Session]:
    """A session that must not notice."""
    with sandbox.session() as neighbour:
        neighbour.run("import os\nx = 'mine'\nopen('f', 'w').write('mine')")
        yield neighbour
        assert neighbour.run("os._exit(1)").state == "rolled_back"
        assert neighbour.run("x, open('f').read()").value == "('mine', 'mine')"


def attack(session: Session, code: str, timeout: float = 0.5) -> Any:
    """Run `code`, then have the worker die; each within its time. The session answers after it."""
    for cell, limit in ((FIND + code, timeout), ("import os; os._exit(1)", 0.5)):
        start = time.monotonic()
        outcome = session.run(cell, timeout=limit)
        # A rollback may take the time that init allows for workspace snapshots.
        assert time.monotonic() - start < limit + 0.2 + SLACK
    eventually(lambda: session.run("6 * 7", timeout=5).value == "42")
    return outcome


FIRST_WORD = (
    "pid = os.fork()\nif pid == 0:\n"
    "    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])\n    os.setsid()\n"
    "    signal.sigwait([signal.SIGUSR1])\n"
    "    _, fds, _, _ = socket.recv_fds(init_socket, 4096, 8)\n"
    "    w = socket.socket(fileno=fds[0])\n    {word}\n    time.sleep(1000)\n"
    "table.write([(pid, 1)])\nworker._rows = [(pid, 1)]\nworker.due = False\n"
    "worker.make = lambda: None"
)
ATTACKS = {
    "table of zeros": "table._page[:] = bytes(4096)",
    "table of ones": "table._page[:] = b'\\xff' * 4096",
    "table of random bytes": "table._page[:] = os.urandom(4096)",
    "table while it is read": (
        "def scribble():\n    while True: table._page[:] = os.urandom(4096)\n"
        "threading.Thread(target=scribble, daemon=True).start()"
    ),
    "table of init": "table.write([(1, 0), (0, 0), (-1, 0), (os.getppid(), 1)])",
    "table of the worker": "table.write([(os.getpid(), n) for n in range(100)])",
    "table of nobody": "table.write([(n, n) for n in range(30000, 30100)])",
    "table of one cell many times": "table.write([(os.getpid(), 1)] * 100)",
    "table of the latest cells": "table.write([(os.getpid(), 2**62)])",
    "a copy that is none": (
        "pid = os.fork()\nif pid == 0:\n    os.setsid()\n    while True: time.sleep(1)\n"
        "table.write([(pid, 1)])"
    ),
    "a copy that eats": (
        "pid = os.fork()\nif pid == 0:\n    os.setsid()\n"
        "    signal.signal(signal.SIGUSR1, lambda *_: 0)\n"
        "    while True: 1\n"
        "table.write([(pid, 1)])"
    ),
    "a copy that takes the socket and is silent": (
        "pid = os.fork()\nif pid == 0:\n"
        "    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])\n    os.setsid()\n"
        "    signal.sigwait([signal.SIGUSR1])\n"
        "    kept = socket.recv_fds(init_socket, 8, 1)\n    time.sleep(1000)\n"
        "table.write([(pid, 1)])\nworker._rows = [(pid, 1)]\nworker.due = False\n"
        "worker.make = lambda: None"
    ),
    "a copy that speaks nonsense": (
        "pid = os.fork()\nif pid == 0:\n"
        "    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])\n    os.setsid()\n"
        "    signal.sigwait([signal.SIGUSR1])\n"
        "    _, fds, _, _ = socket.recv_fds(init_socket, 8, 1)\n"
        "    os.write(fds[0], os.urandom(1 << 16))\n    time.sleep(1000)\n"
        "table.write([(pid, 1)])\nworker.make = lambda: None"
    ),
    **{
        f"a copy whose first word is {name}": FIRST_WORD.format(word=word)
        for name, word in {
            "half a word": "w.send(bytes(3))",
            "an end": "w.shutdown(socket.SHUT_RDWR)",
            "descriptors": "socket.send_fds(w, [b'x'], [0, 1, 2])",
        }.items()
    },
    "snapshots killed": (
        "for pid, _ in table.read(): os.kill(pid, signal.SIGKILL)\nworker.make = lambda: None"
    ),
    "snapshots stopped": "for pid, _ in table.read(): os.kill(pid, signal.SIGSTOP)",
    "snapshots activated": "for pid, _ in table.read(): os.kill(pid, signal.SIGUSR1)",
    "snapshots activated by a command of the worker's": (
        "one, other = socket.socketpair()\n"
        "for pid, _ in table.read():\n    os.kill(pid, signal.SIGUSR1)\n"
    ),
    "everybody signalled": (
        "for pid in range(2, 200):\n    for number in (9, 19, 10):\n"
        "        if pid != os.getpid():\n            try: os.kill(pid, number)\n"
        "            except OSError: pass"
    ),
    "commands read away": (
        "def steal():\n    while True: init_socket.recv(8)\n"
        "threading.Thread(target=steal, daemon=True).start()"
    ),
    "socket to init closed": "os.close(init_socket.fileno())",
    "socket to init shut down": "init_socket.shutdown(socket.SHUT_RDWR)",
    "requests in a flood": (
        "init_socket.setblocking(False)\nend = time.monotonic() + 0.3\n"
        "while time.monotonic() < end:\n"
        "    try: init_socket.send(keep(7) * 100)\n    except OSError: pass"
    ),
    "requests for all cells": (
        "for n in range(-50, 50):\n    init_socket.send(keep(n * 2**55)); init_socket.recv(1)"
    ),
    "requests in pieces": "init_socket.send(b'abc')",
    "descriptors with requests": (
        "try: socket.send_fds(init_socket, keep(1), [0] * 10)\nexcept OSError: pass"
    ),
    "no pids to have": (
        "signal.signal(signal.SIGCHLD, signal.SIG_IGN)\ntry:\n"
        "    while True:\n        if os.fork() == 0: time.sleep(1000)\nexcept OSError: pass"
    ),
    "forks that go on": (
        "def again():\n    while True:\n        try:\n            if os.fork(): os._exit(0)\n"
        "        except OSError: pass\n"
        "if os.fork() == 0: again()"
    ),
    "hooks that end the copy": "os.register_at_fork(after_in_child=lambda: os._exit(0))",
    "hooks that stay": (
        "os.register_at_fork(after_in_child=lambda: time.sleep(1000))\n"
        "threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()"
    ),
    "a limit of one descriptor": (
        "import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (4, 4))"
    ),
    "a limit of no process": "import resource\nresource.setrlimit(resource.RLIMIT_NPROC, (0, 0))",
    "every signal to the snapshots": (
        "for pid, _ in table.read():\n"
        "    for number in range(1, 65):\n"
        "        if number not in (9, 19, 32, 33): os.kill(pid, number)"
    ),
    "recovery's names taken away": (
        "for name in list(vars(snapshot_processes)): setattr(snapshot_processes, name, None)\n"
        "worker._resources = None"
    ),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_the_session_goes_on_and_no_other_is_affected(
    session: Session, neighbour: Session, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # These take all the time that the host allows, which may be less.
    if "silent" in name or "first word" in name:
        set_restore_timeout(monkeypatch, 0.5)
    attack(session, ATTACKS[name])


@pytest.mark.parametrize("sandbox", ["process"], indirect=True)
def test_a_first_out_of_band_byte_is_ignored(
    session: Session, neighbour: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The seccomp filter of the other tiers refuses to send it."""
    set_restore_timeout(monkeypatch, 0.5)
    attack(session, FIRST_WORD.format(word="w.send(b'a', socket.MSG_OOB)"))


FILES = {
    "a link where a file was": (
        "os.unlink('f'); os.symlink('/etc/passwd', 'f')",
        "open('f').read()",
        "'kept'",
    ),
    "a link where a directory was": (
        "os.rename('d', 'e'); os.symlink('/tmp', 'd')",
        "os.path.islink('d'), open('d/g').read(), os.path.exists('/tmp/g')",
        "(False, 'kept', False)",
    ),
    "a link to itself": ("os.unlink('f'); os.symlink('f', 'f')", "open('f').read()", "'kept'"),
    "a directory where a file was": (
        "os.unlink('f'); os.makedirs('f/f/f')",
        "open('f').read()",
        "'kept'",
    ),
    "holes": (
        "for n in range(20):\n"
        "    fd = os.open(f'hole{n}', os.O_CREAT | os.O_WRONLY); os.truncate(fd, 60 << 20)\n"
        "    os.close(fd)",
        "os.listdir()",
        "['d', 'f']",
    ),
    "many files": (
        "for n in range(2_000): os.mkdir(f'm{n}')",
        "sorted(os.listdir())",
        "['d', 'f']",
    ),
    "a name of bytes": (
        "open(b'\\xff\\n\\x1b[31m', 'w').close()",
        "sorted(os.listdir())",
        "['d', 'f']",
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_files_are_restored_whatever_replaced_them(
    session: Session, neighbour: Session, name: str
) -> None:
    spoil, look, expected = FILES[name]
    session.run("import os\nos.mkdir('d')\nfor p in ('f', 'd/g'): open(p, 'w').write('kept')")
    outcome = session.run(f"{spoil}\nos._exit(1)")
    assert (outcome.state, outcome.lost) == ("rolled_back", ()), outcome
    shown = session.run(look).value
    assert (
        shown == expected or eval(shown) == eval(expected) or sorted(eval(shown)) == eval(expected)
    )


def test_endless_directories_are_named_in_bounded_time(session: Session) -> None:
    session.run("import os\nopen('f', 'w').write('kept')")
    code = "for _ in range(300):\n    os.mkdir('d'); os.chdir('d')\nos._exit(1)"
    start = time.monotonic()
    outcome = session.run(code)
    assert outcome.state == "rolled_back"
    # A watchdog that scans the directory may have been first, and removed it all; or the watchdog
    # comes later, to what is left.
    assert any("deep" in name or "removed" in name for name in outcome.lost), outcome.lost
    assert time.monotonic() - start < SLACK
    following = session.run("6 * 7")
    if isinstance(following, Killed):
        assert (following.reason, following.state) == ("workspace", "rolled_back"), following
        following = session.run("6 * 7")
    assert following.value == "42"


def test_names_of_lost_resources_are_plain_text(sandbox: Sandbox) -> None:
    """Of a file that is too large to be stored, and of its descriptor."""
    limits = Limits(timeout=PATIENCE, workspace="100MiB", file_size="100MiB")
    with sandbox.session(limits=limits) as session:
        session.run("import os\nname = '\\x1b[31mred\\n'")
        session.run("fd = os.open(name, os.O_CREAT | os.O_RDWR)\nos.truncate(fd, 70 << 20)")
        outcome = session.run("os.unlink(name)\nos._exit(1)")
    assert outcome.state == "rolled_back"
    assert len(outcome.lost) == 2
    assert all("red" in name and name.isprintable() for name in outcome.lost), outcome.lost


@pytest.mark.parametrize("depth", [2, 4, 60])
def test_long_names_of_lost_resources_are_truncated(sandbox: Sandbox, depth: int) -> None:
    """Of files that are too large to be stored, with names whose report takes seven times their
    length.
    """
    limits = Limits(timeout=PATIENCE, workspace="100MiB", file_size="100MiB")
    with sandbox.session(limits=limits) as session:
        session.run(
            "import os\nfd = os.open('.', os.O_RDONLY)\n"
            f"for _ in range({depth}):\n"
            "    os.mkdir(b'\\xff' * 250, dir_fd=fd)\n"
            "    fd = os.open(b'\\xff' * 250, os.O_RDONLY, dir_fd=fd)\n"
            "for n in range(30):\n"
            "    file = os.open(f'f{n}', os.O_CREAT | os.O_WRONLY, dir_fd=fd)\n"
            "    os.truncate(file, 70 << 20); os.close(file)"
        )
        session.run("x = 42")
        outcome = session.run("for n in range(30): os.unlink(f'f{n}', dir_fd=fd)\nos._exit(1)")
        assert outcome.state == "rolled_back"
        assert len(outcome.lost) == 21
        assert all(len(name) < 300 for name in outcome.lost)
        assert session.run("x").value == "42"


@pytest.mark.parametrize(
    "load",
    [
        "for n in range(9000): os.mkdir(f'm{n}')",
        "with open('big', 'wb') as f: f.write(os.urandom(50 << 20))",
    ],
    ids=["many files", "a large file"],
)
def test_a_cell_ends_in_time_while_its_requests_keep_init_busy(session: Session, load: str) -> None:
    session.run(f"import os\n{load}")
    flood = FIND + (
        "init_socket.setblocking(False)\n"
        "for name in os.listdir()[:1]: os.utime(name) if os.path.isfile(name) else 0\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])\n"
        "while True:\n"
        "    try: init_socket.send(keep(1) * 100)\n    except OSError: pass"
    )
    start = time.monotonic()
    outcome = session.run(flood, timeout=0.5)
    assert isinstance(outcome, TimedOut)
    assert time.monotonic() - start < 0.5 + 0.2 + SLACK
    assert session.get("x") == 42


def test_the_losses_that_a_worker_reports_are_bounded(session: Session) -> None:
    code = FIND + (
        "from repl_sandbox.snapshots.lost_resources import LostResources\n"
        "LostResources.restore = lambda *_: (['\\x1b' * 10**6] * 1000, set())"
    )
    outcome = attack(session, code)
    assert sum(map(len, outcome.lost)) < 1 << 20


USER = """
import json, os, time, psutil
from repl_sandbox import Limits, Sandbox

def worst(isolation, attack):
    limits = Limits(timeout=60, grace=0.2, processes=200)
    with Sandbox(isolation=isolation, limits=limits) as sandbox:
        with sandbox.session() as neighbour, sandbox.session() as session:
            neighbour.run("x = 1")
            session.run("import os, signal\\nx = 1\\nopen('f', 'w').write('kept')")
            session.run("open('f', 'a').write('!')")
            init = psutil.Process(session._core.links.pid)
            start = time.monotonic()
            session.run(attack)
            outcome = session.run("x = 2; os._exit(1)")
            took = time.monotonic() - start
            answers = [session.run("6 * 7").value, neighbour.run("x").value]
            return [outcome.state, list(outcome.lost), took, answers]

print(json.dumps(worst({tier!r}, {attack!r})))
"""


@pytest.mark.parametrize("number", [9, 19])
@pytest.mark.parametrize("tier", ["jailed", "confined"])
def test_an_ordinary_user_s_session_does_not_reach_the_workspace_snapshots(
    user: Callable[[str], Any], tier: str, number: int
) -> None:
    """All its processes have one uid there; what holds is the pid namespace, or Landlock."""
    code = (
        f"for pid in range(2, 30 if {tier == 'jailed'} else 2):\n    if pid != os.getpid():\n"
        f"        try: os.kill(pid, {number})\n        except OSError: pass"
    )
    state, lost, took, answers = user(USER.format(tier=tier, attack=code))
    assert answers == ["42", "1"]
    assert took < SLACK
    # Code may end its own snapshots; then fewer rollbacks are possible, which is reported.
    assert state in ("rolled_back", "restarted")
    if state == "rolled_back":
        assert lost == [] or all("files" in name or "cells" in name for name in lost)


def test_deaths_of_all_kinds_are_recovered_for_an_ordinary_user(
    user: Callable[[str], Any],
) -> None:
    from tests.sandbox.snapshots.test_recovery import DEATHS, SECONDS

    script = """
import json
from repl_sandbox import Limits, Sandbox
found = {}
for tier in ("jailed", "confined", "process"):
    limits = Limits(grace=0.1, memory="300MiB", processes=200)
    with Sandbox(isolation=tier, limits=limits) as sandbox:
        for name, code in DEATHS.items():
            if tier == "process" and name == "its parent killed":
                continue
            code = "x = 2\\nprint('so far', flush=True)\\n" + code
            seconds = SECONDS[name]
            while f"{name} {tier}" not in found:
                with sandbox.session() as session:
                    session.run("x = 1")
                    outcome = session.run(code, timeout=seconds)
                    seconds *= 4
                    # A machine that is busy may not even have begun it in that time.
                    if outcome.stdout or seconds > 100:
                        found[f"{name} {tier}"] = [outcome.state, list(outcome.lost),
                            outcome.stdout[:7], session.run("x").value]
print(json.dumps(found))
"""
    found = user(f"DEATHS, SECONDS = {DEATHS!r}, {SECONDS!r}\n{script}")
    assert len(found) == 3 * len(DEATHS) - 1
    for name, came_to in found.items():
        assert came_to == ["rolled_back", [], "so far\n", "1"], name
