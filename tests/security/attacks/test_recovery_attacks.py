"""Code that attacks its own recovery.

It can lose its recovery, but cannot affect the deadlines of the host or other sessions.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest

from repl_sandbox import (
    AsyncSandbox,
    Finished,
    Killed,
    Limits,
    Raised,
    Sandbox,
    Session,
    TimedOut,
)
from repl_sandbox.types import AnyOutcome
from tests.internals import worker_pid
from tests.security.abuse.quiet import Quiet, quiet_beside
from tests.waiting import PATIENCE, eventually

TIERS = ("jailed", "confined")

# The parts of the machinery that code can find from the outside of its Python names. An attack ends
# with a line that proves that it took place: it prints what it finds in the table, or in the
# processes, after it has done its part.
FIND = """
import ctypes, fcntl, gc, mmap, os, platform, resource, signal, socket, stat, struct
import threading, time
from repl_sandbox.protocol import control
from repl_sandbox.worker import snapshots
worker = next(o for o in gc.get_objects() if type(o).__name__ == "BranchFork")
resources, table = worker._resources, worker._resources.table
init_socket = resources.init_socket
def keep(cell):
    return control.WORKER_MESSAGE.pack(control.KEEP, cell)
def proof(*facts):
    print("PROOF", *facts, flush=True)
def proved(*rows):
    assert table.read() == list(rows), table.read()
    for pid, _ in rows: os.kill(pid, 0)
    proof(rows)
def stay():
    while True: time.sleep(1)
CLONE = 56 if platform.machine() == "x86_64" else 220
def born(body):
    # A child of init's (CLONE_PARENT), which says that it has begun.
    read, write = os.pipe()
    pid = ctypes.CDLL(None).syscall(CLONE, 0x8000 | signal.SIGCHLD, 0, 0, 0, 0)
    if pid == 0:
        try:
            body(lambda: os.write(write, b"x"))
        finally:
            os._exit(0)
    assert os.read(read, 1) == b"x"
    return pid
def forge(*bodies):
    rows = [(born(body), 1) for body in bodies]
    table.write(rows)
    proved(*rows)
"""


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


@pytest.fixture(scope="module")
def quiet(sandbox: Sandbox) -> Iterator[Quiet]:
    """How late a session may be: by as much as this machine makes one wait that attacks nothing."""
    with quiet_beside(sandbox) as quiet:
        yield quiet


def attack(session: Session, quiet: Quiet, code: str, timeout: float = 5.0) -> AnyOutcome:
    """Run `code`, which proves itself and ends its worker or not; then one that ends it. Each has
    an outcome in time, and the session answers after it.
    """
    outcome = timed(session, quiet, FIND + code, timeout)
    assert "PROOF" in outcome.stdout, outcome
    if outcome.state == "kept":
        timed(session, quiet, "import os; os._exit(1)", timeout)
    answer = timed(session, quiet, "6 * 7", timeout)
    if not isinstance(answer, Finished):  # the worker that was left may be the attack's own
        answer = timed(session, quiet, "6 * 7", timeout)
    assert answer.value == "42", answer
    return outcome


def timed(
    session: Session, quiet: Quiet, code: str, timeout: float, within: float | None = None
) -> AnyOutcome:
    """The outcome of `code`, which comes in `within` seconds, or by the end of its time."""
    quiet.begin()
    start = time.monotonic()
    outcome = session.run(code, timeout=timeout)
    took = time.monotonic() - start
    limit = timeout + 0.2 if within is None else within
    assert took < limit + quiet.slack, (took, limit, quiet.slack, outcome)
    return outcome


# A copy that takes over and says a first word that no snapshot says.
SPEAK = """
def copy(begun):
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    begun()
    signal.sigwait([signal.SIGUSR1])
    _, fds, _, _ = socket.recv_fds(init_socket, 4096, 8)
    w = socket.socket(fileno=fds[0])
    {word}
    stay()
forge(copy)
os._exit(1)
"""
# Every process of these goes on as long as it can, and continues the others when they are stopped.
RACE = """
def racer(begun):
    begun()
    while True:
        for pid in range(2, 64):
            try: os.kill(pid, signal.SIGCONT)
            except OSError: pass
        {more}
table_of = [racer] * 4
forge(*table_of)
os._exit(1)
"""
ATTACKS = {
    "table of zeros": (
        "table._page[:] = bytes(4096)\nproof(bytes(table._page).count(0))\nos._exit(1)"
    ),
    "table of ones": "table._page[:] = b'\\xff' * 4096\nproof(bytes(table._page[:9]))\nos._exit(1)",
    "table of random bytes": (
        "random = os.urandom(4096)\ntable._page[:] = random\n"
        "assert bytes(table._page) == random\nproof(random[:9])\nos._exit(1)"
    ),
    "table while it is read": (
        "def scribble():\n    os.setsid()\n    while True: table._page[:] = os.urandom(4096)\n"
        "if os.fork() == 0: scribble()\n"
        "before = bytes(table._page)\nwhile bytes(table._page) == before: pass\n"
        "proof('scribbled')\nos._exit(1)"
    ),
    "table of init": (
        "rows = [(1, 0), (0, 0), (-1, 0), (os.getppid(), 1)]\ntable.write(rows)\n"
        "assert table.read() == rows\nproof(rows)\nos._exit(1)"
    ),
    "table of the worker": (
        "rows = [(os.getpid(), n) for n in range(100)]\ntable.write(rows)\nproved(*rows)\n"
        "os._exit(1)"
    ),
    "table of nobody": (
        "rows = [(n, n) for n in range(30000, 30100)]\ntable.write(rows)\n"
        "assert table.read() == rows\nproof(rows[:2])\nos._exit(1)"
    ),
    "table of one cell many times": (
        "rows = [(os.getpid(), 1)] * 100\ntable.write(rows)\nproved(*rows)\nos._exit(1)"
    ),
    "table of the latest cells": (
        "rows = [(os.getpid(), 2**62)]\ntable.write(rows)\nproved(*rows)\nos._exit(1)"
    ),
    "table of more rows than there may be": (
        "rows = [(born(lambda begun: (begun(), stay())), n) for n in range(12)]\n"
        "table.write(rows)\nproved(*rows)\nos._exit(1)"
    ),
    "a copy that is none": (
        "def copy(begun):\n    os.setsid()\n    begun()\n    stay()\nforge(copy)\nos._exit(1)"
    ),
    "a copy with a child": (
        "def copy(begun):\n    if os.fork() == 0: stay()\n    begun()\n    stay()\n"
        "forge(copy)\nos._exit(1)"
    ),
    "a copy with a dead child": (
        "def copy(begun):\n    if os.fork() == 0: os._exit(0)\n    begun()\n    stay()\n"
        "forge(copy)\nos._exit(1)"
    ),
    "a copy with descendants": (
        "def copy(begun):\n    for depth in range(5):\n        if os.fork(): break\n"
        "    else: begun()\n    stay()\nforge(copy)\nos._exit(1)"
    ),
    "a copy with threads": (
        "def copy(begun):\n"
        "    for _ in range(3): threading.Thread(target=stay).start()\n    begun()\n    stay()\n"
        "forge(copy)\nos._exit(1)"
    ),
    "copies that continue each other": RACE.format(more="pass"),
    "copies that bear others to init": RACE.format(
        more="if ctypes.CDLL(None).syscall(CLONE, 0x8000 | 17, 0, 0, 0, 0) == 0: os._exit(0)"
    ),
    # One child at a time: what they leave unwaited for would fill the limit of processes.
    "copies that fork": RACE.format(
        more="pid = os.fork()\n        if pid == 0: os._exit(0)\n        os.waitpid(pid, 0)"
    ),
    "a copy that eats": (
        "def copy(begun):\n    signal.signal(signal.SIGUSR1, lambda *_: 0)\n    begun()\n"
        "    while True: 1\nforge(copy)\nos._exit(1)"
    ),
    "a copy that takes the socket and is silent": SPEAK.format(word="pass"),
    "a copy that takes the socket and computes": SPEAK.format(word="while True: pass"),
    "a copy that takes the socket and is stopped": SPEAK.format(
        word="os.kill(os.getpid(), signal.SIGSTOP)"
    ),
    "a copy that takes the socket and exits": SPEAK.format(word="os._exit(0)"),
    "a copy that speaks nonsense": SPEAK.format(word="w.send(os.urandom(1 << 16))"),
    "a copy whose first word is half a word": SPEAK.format(word="w.send(bytes(3))"),
    "a copy whose first word is an end": SPEAK.format(word="w.shutdown(socket.SHUT_RDWR)"),
    "a copy whose first word is descriptors": SPEAK.format(
        word="socket.send_fds(w, [b'x'], [0, 1, 2])"
    ),
    "snapshots killed": (
        "rows = table.read()\nassert rows\nfor pid, _ in rows: os.kill(pid, signal.SIGKILL)\n"
        "worker.make = lambda **_: None\nproof(rows)"
    ),
    "snapshots killed, and the cell dies": (
        "rows = table.read()\nassert rows\nfor pid, _ in rows: os.kill(pid, signal.SIGKILL)\n"
        "proof(rows)\nos._exit(1)"
    ),
    "snapshots stopped": (
        "rows = table.read()\nassert rows\nfor pid, _ in rows: os.kill(pid, signal.SIGSTOP)\n"
        "proof(rows)\nos._exit(1)"
    ),
    "snapshots activated": (
        "rows = table.read()\nassert rows\nfor pid, _ in rows: os.kill(pid, signal.SIGUSR1)\n"
        "proof(rows)\nos._exit(1)"
    ),
    "snapshots activated by a command of the worker's": (
        "one, other = socket.socketpair()\nrows = table.read()\nassert rows\n"
        "for pid, _ in rows:\n"
        "    command = control.COMMAND.pack(pid, 0, -1, 0)\n"
        "    socket.send_fds(init_socket, [command], [other.fileno()])\n"
        "    os.kill(pid, signal.SIGUSR1)\n"
        "proof(rows)\nos._exit(1)"
    ),
    "everybody signalled": (
        "hit = 0\nfor pid in range(2, 200):\n    for number in (9, 19, 10):\n"
        "        if pid != os.getpid():\n            try: os.kill(pid, number); hit += 1\n"
        "            except OSError: pass\n"
        "for pid, _ in table.read():\n    try: os.kill(pid, 9); hit += 1\n"
        "    except OSError: pass\n"
        "assert hit\nproof(hit)\nos._exit(1)"
    ),
    "commands read away": (
        "def steal():\n    os.setsid()\n    proof('steals')\n    while True: init_socket.recv(8)\n"
        "if os.fork() == 0: steal()\ntime.sleep(.1)\nos._exit(1)"
    ),
    "socket to init closed": (
        "os.close(init_socket.fileno())\ntry: init_socket.send(b'x')\n"
        "except OSError as error: proof(error)\nos._exit(1)"
    ),
    "socket to init closed for the next cell": (
        "os.close(init_socket.fileno())\ntry: init_socket.send(b'x')\n"
        "except OSError as error: proof(error)"
    ),
    "socket to init shut down": (
        "init_socket.shutdown(socket.SHUT_RDWR)\nproof(init_socket.recv(1))\nos._exit(1)"
    ),
    "requests in a flood": (
        "init_socket.setblocking(False)\nend, sent = time.monotonic() + 0.3, 0\n"
        "while time.monotonic() < end:\n"
        "    try: sent += init_socket.send(keep(7) * 100)\n    except OSError: pass\n"
        "assert sent\nproof(sent)\nos._exit(1)"
    ),
    "requests for all cells": (
        "answers = b''\nfor n in range(-50, 50):\n"
        "    init_socket.send(keep(n * 2**55)); answers += init_socket.recv(1)\n"
        "proof(len(answers))\nos._exit(1)"
    ),
    "requests in pieces": "proof(init_socket.send(b'abc'))\nos._exit(1)",
    "descriptors with requests": (
        "try: proof(socket.send_fds(init_socket, [keep(1)], [0] * 10))\n"
        "except OSError as error: proof(error)\nos._exit(1)"
    ),
    "no pids to have": (
        "signal.signal(signal.SIGCHLD, signal.SIG_IGN)\ntry:\n"
        "    while True:\n        if os.fork() == 0: stay()\n"
        "except OSError as error: proof(error)\nos._exit(1)"
    ),
    "forks that go on": (
        "def again():\n    proof('forks')\n    while True:\n        try:\n"
        "            if os.fork(): os._exit(0)\n        except OSError: pass\n"
        "if os.fork() == 0: again()\ntime.sleep(.1)\nos._exit(1)"
    ),
    "hooks that end the copy": (
        "os.register_at_fork(after_in_child=lambda: os._exit(3))\n"
        "if (pid := os.fork()): proof(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))"
    ),
    "hooks that stay": (
        "os.register_at_fork(after_in_child=stay)\n"
        "threading.Thread(target=stay, daemon=True).start()\nproof(threading.active_count())"
    ),
    "a limit of one descriptor": (
        "resource.setrlimit(resource.RLIMIT_NOFILE, (4, 4))\n"
        "proof(resource.getrlimit(resource.RLIMIT_NOFILE))"
    ),
    "a limit of no process": (
        "resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))\n"
        "proof(resource.getrlimit(resource.RLIMIT_NPROC))"
    ),
    "every signal to the snapshots": (
        "rows = table.read()\nassert rows\nfor pid, _ in rows:\n"
        "    for number in range(1, 65):\n"
        "        if number not in (9, 19, 32, 33): os.kill(pid, number)\nproof(rows)\nos._exit(1)"
    ),
    "recovery's names taken away": (
        "for name in list(vars(snapshots)): setattr(snapshots, name, None)\n"
        "worker._resources = None\nproof(snapshots.KEEP)"
    ),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_the_session_goes_on_and_no_other_is_affected(
    session: Session, neighbour: Session, quiet: Quiet, name: str
) -> None:
    attack(session, quiet, ATTACKS[name])


FORGED = [name for name in ATTACKS if name.startswith(("table of", "a copy", "copies"))]


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_snapshot_is_the_death_of_its_cell_and_costs_no_more(
    session: Session, quiet: Quiet, name: str
) -> None:
    """Not the cell's time-out, nor an error of the host's, which is no fault of the cell's."""
    outcome = timed(session, quiet, FIND + ATTACKS[name], PATIENCE, within=3.0)
    assert isinstance(outcome, Killed), outcome
    assert outcome.reason == "exit"
    assert "PROOF" in outcome.stdout, outcome


def test_a_time_limit_of_the_caller_ends_the_call_of_an_attack(sandbox: Sandbox) -> None:
    async def attacked() -> AnyOutcome:
        async with AsyncSandbox.of(sandbox).session() as session:
            await session.run("x = 1")
            async with asyncio.timeout(PATIENCE):
                return await session.run(FIND + ATTACKS["a copy with a child"])

    outcome = asyncio.run(attacked())
    assert isinstance(outcome, Killed), outcome
    assert "PROOF" in outcome.stdout, outcome


def test_a_time_out_waits_for_no_snapshot_that_code_prevents(
    session: Session, quiet: Quiet
) -> None:
    prevented = timed(session, quiet, FIND + ATTACKS["snapshots killed"], 5.0)
    assert "PROOF" in prevented.stdout, prevented
    deaf = "import signal, time\nsignal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])\n"
    for code in ("time.sleep(1000)", "while True: pass"):
        outcome = timed(session, quiet, deaf + code, 0.5, within=0.5 + 0.2 + 1.0)
        assert isinstance(outcome, TimedOut), outcome


def test_a_death_between_two_cells_is_told_with_its_cause(session: Session) -> None:
    session.run("import os, threading")
    deaths = {"os._exit(1)": "exit", "os.abort()": "signal", "os.kill(os.getpid(), 9)": "signal"}
    for death, reason in deaths.items():
        session.run(f"threading.Timer(0.05, lambda: {death}).start()")
        eventually(lambda: not psutil.pid_exists(worker_pid(session)))
        outcome = session.run("1 / 0")
        assert isinstance(outcome, Raised), outcome
        assert (outcome.died_before, outcome.state) == (reason, "rolled_back"), outcome
        assert session.run("1").died_before is None


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


def test_endless_directories_are_named_in_bounded_time(session: Session, quiet: Quiet) -> None:
    session.run("import os\nopen('f', 'w').write('kept')")
    code = "for _ in range(300):\n    os.mkdir('d'); os.chdir('d')\nos._exit(1)"
    outcome = timed(session, quiet, code, PATIENCE, within=5.0)
    assert outcome.state == "rolled_back"
    # A watchdog that scans the directory may have been first, and removed it all; or the watchdog
    # comes later, to what is left.
    assert any("deep" in name or "removed" in name for name in outcome.lost), outcome.lost
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
def test_a_cell_ends_in_time_while_its_requests_keep_init_busy(
    session: Session, quiet: Quiet, load: str
) -> None:
    session.run(f"import os\n{load}")
    flood = FIND + (
        "init_socket.setblocking(False)\n"
        "for name in os.listdir()[:1]: os.utime(name) if os.path.isfile(name) else 0\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])\n"
        "while True:\n"
        "    try: init_socket.send(keep(1) * 100)\n    except OSError: pass"
    )
    outcome = timed(
        session, quiet, flood, 0.5, within=0.5 + 0.2 + 1.0
    )  # init reads and writes them
    assert isinstance(outcome, TimedOut)
    assert session.get("x") == 42


def test_the_losses_that_a_worker_reports_are_bounded(session: Session, quiet: Quiet) -> None:
    code = FIND + (
        "from repl_sandbox.worker.lost_resources import LostResources\n"
        "LostResources.restore = lambda *_: (['\\x1b' * 10**6] * 1000, set())\n"
        "proof(LostResources.restore)"
    )
    assert "PROOF" in session.run(code).stdout
    outcome = timed(session, quiet, "import os\nos._exit(1)", PATIENCE, within=5.0)
    assert outcome.state == "rolled_back"
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
            # In a pid namespace of its own, code finds them by their numbers there.
            jailed = isolation == "jailed"
            pids = range(2, 30) if jailed else [p.pid for p in init.children(recursive=True)]
            session.set("pids", list(pids))
            start = time.monotonic()
            attacked = session.run(attack)
            outcome = session.run("x = 2; os._exit(1)")
            took = time.monotonic() - start
            start = time.monotonic()
            neighbour.run("import os; os._exit(1)")
            took -= 4 * (time.monotonic() - start)
            answers = [session.run("6 * 7").value, neighbour.run("x").value]
            return [attacked.stdout, outcome.state, list(outcome.lost), took, answers]

print(json.dumps(worst({tier!r}, {attack!r})))
"""


@pytest.mark.parametrize("number", [9, 19])
@pytest.mark.parametrize("tier", ["jailed", "confined"])
def test_an_ordinary_user_s_session_does_not_reach_the_workspace_snapshots(
    user: Callable[[str], Any], tier: str, number: int
) -> None:
    """All its processes have one uid there; what holds is the pid namespace, or Landlock."""
    code = (
        "reached = 0\nassert pids\nfor pid in pids:\n    if pid != os.getpid():\n"
        f"        try: os.kill(pid, {number}); reached += 1\n        except OSError: pass\n"
        "print('PROOF', reached, 'of', len(pids))"
    )
    shown, state, lost, took, answers = user(USER.format(tier=tier, attack=code))
    assert "PROOF" in shown
    assert answers == ["42", "1"]
    assert took < 3.0
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
