"""A process that takes over has all that the last cell left: memory, and what is no memory."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from repl_sandbox import Killed, Sandbox, Session
from tests.sandbox.conftest import PATIENT

_PROCESSES = "[int(name) for name in os.listdir('/proc') if name.isdecimal()]"
# After this number of cells each kept snapshot has replaced another at least once.
_CELLS = 4


@pytest.fixture(scope="module")
def jailed() -> Iterator[Sandbox]:
    with Sandbox(isolation="jailed", limits=PATIENT) as sandbox:
        yield sandbox


@pytest.fixture
def session(jailed: Sandbox) -> Iterator[Session]:
    with jailed.session() as session:
        session.run("import ctypes, mmap, os, resource, signal, sys\nx = 0")
        yield session


def die(session: Session) -> Killed:
    outcome = session.run("import os; x = 'lost'; os._exit(1)")
    assert isinstance(outcome, Killed)
    assert outcome.state == "rolled_back"
    return outcome


def test_sessions_leave_no_garbage_in_their_template(jailed: Sandbox) -> None:
    """The first collection of a session would write to all of its memory."""
    look = "import gc; gc.collect(); sum(each['collected'] for each in gc.get_stats())"

    def collected(_: int) -> int:
        with jailed.session() as session:
            return int(session.run(look).value or "")

    # At once, so that what was made for one does not serve for the next.
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(collected, range(16)))
        found = [list(pool.map(collected, range(16)))[-1] for _ in range(5)]
    assert found[-1] == found[0]


def test_a_snapshot_has_the_state_after_the_last_cell(session: Session) -> None:
    for number in range(5):
        session.run(f"x = {{'number': {number}, 'all': list(range({number}))}}")
    die(session)
    assert session.get("x") == {"number": 4, "all": [0, 1, 2, 3]}
    session.run("x = 5")
    die(session)
    assert session.get("x") == 5


# Operations of a cell on a namespace: on small objects, on large ones, on none.
_OPERATIONS = (
    "data[{n} % 40] = list(range({n}))",
    "data.pop({n} % 40, None)",
    "text = str({n}) * {n}",
    "table = bytearray({n} * 4096); table[{n}] = 7",
    "table[{n} % max(len(table), 1):] = b'!' * {n}",
    "def f(a={n}): return a + {n}",
    "numbers = sorted(numbers + [{n}])[-50:]",
    "objects = [object() for _ in range({n} * 40)]; held = len(objects)",
    "del objects[len(objects) // 2:]",
    "import json; text = json.dumps([list(data), numbers])",
    "exec('g_{n} = {n}'); text += str(g_{n})",
    "1 / 0",
    "None",
)
_LOOK = "(data, text, bytes(table), f(), numbers, len(objects))"


@pytest.mark.parametrize("number", range(2))
def test_a_recovered_worker_behaves_as_if_nothing_had_died(jailed: Sandbox, number: int) -> None:
    choice = random.Random(number)
    begin = "data, text, table, numbers, objects = {}, '', bytearray(), [], []\ndef f(): return 0"
    with jailed.session() as dying, jailed.session() as living:
        for session in (dying, living):
            session.run(begin)
        for _ in range(60):
            code = choice.choice(_OPERATIONS).format(n=choice.randrange(1, 400))
            for session in (dying, living):
                session.run(code)
            if choice.random() < 0.1:
                die(dying)
                assert dying.run(_LOOK).value == living.run(_LOOK).value
        assert dying.run(_LOOK).value == living.run(_LOOK).value


def test_memory_excluded_from_forks_is_lost_alone(session: Session) -> None:
    """The pages that the worker writes are not charged to a snapshot."""
    session.run("m = mmap.mmap(-1, 1 << 20, mmap.MAP_PRIVATE)\nm.madvise(mmap.MADV_DONTFORK)")
    for number in range(_CELLS):
        session.run(f"x = {number}; m[{number} * 4096] = 1")
    die(session)
    assert session.get("x") == _CELLS - 1


@pytest.mark.parametrize(
    ("change", "shown", "value"),
    [
        ("os.mkdir('a'); os.chdir('a')", "os.path.basename(os.getcwd())", "'a'"),
        ("os.umask(0o077)", "oct(os.umask(0))", "'0o77'"),
        (
            "resource.setrlimit(resource.RLIMIT_STACK, (1 << 20, 1 << 20))",
            "resource.getrlimit(resource.RLIMIT_STACK)[0]",
            "1048576",
        ),
        (
            "signal.signal(signal.SIGUSR2, lambda *_: None)",
            "os.kill(os.getpid(), signal.SIGUSR2)",
            None,
        ),
        (
            "signal.pthread_sigmask(signal.SIG_BLOCK, [34])",
            "34 in signal.pthread_sigmask(0, [])",
            "True",
        ),
        (
            "m = mmap.mmap(-1, 1 << 16, mmap.MAP_PRIVATE); m[0] = 7",
            "m[0]",
            "7",
        ),
    ],
    ids=["directory", "mask", "limit", "handler", "blocked", "mapping"],
)
def test_state_outside_of_memory_is_as_after_the_last_cell(
    session: Session, change: str, shown: str, value: str | None
) -> None:
    session.run(change)
    die(session)
    assert session.run(shown).value == value


@pytest.mark.parametrize(
    ("change", "lost"),
    [
        (
            "import threading, time\nthreading.Thread(target=time.sleep, args=(900,)).start()",
            "thread",
        ),
        ("signal.signal(14, signal.SIG_IGN); signal.setitimer(signal.ITIMER_REAL, 900)", "timer"),
        ("pipe = os.pipe()", "a pipe"),
    ],
    ids=["thread", "timer", "pipe"],
)
def test_resources_that_cannot_be_kept_are_named(session: Session, change: str, lost: str) -> None:
    assert session.run(change).error is None
    assert any(lost in name for name in die(session).lost)


def test_a_small_limit_of_files_ends_no_session(session: Session) -> None:
    session.run(
        "signal.signal(signal.SIGXFSZ, signal.SIG_DFL)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))"
    )
    session.run("y = x")
    die(session)
    assert session.get("y") == 0


def test_code_that_closes_and_reuses_descriptors_keeps_its_own(session: Session) -> None:
    session.run("os.closerange(3, 900)\nheld = [open('/workspace/f', 'w+') for _ in range(200)]")
    session.run("for file in held: file.write('x'); file.flush()")
    for number in range(_CELLS):
        session.run(f"x = {number}")
    assert session.run("os.path.getsize('/workspace/f')").value == "1"
    die(session)
    assert session.get("x") == _CELLS - 1


def test_killed_snapshots_are_made_again(session: Session) -> None:
    for number in range(4):
        session.run(
            f"x = {number}\nfor pid in {_PROCESSES}:\n"
            "    if pid not in (1, os.getpid()): os.kill(pid, signal.SIGKILL)"
        )
        session.run("y = x")
    die(session)
    assert (session.get("x"), session.get("y")) == (3, 3)


def test_a_branch_and_its_session_go_on_from_the_last_cell(session: Session) -> None:
    session.run("x = 'both'")
    with session.branch() as branch:
        assert branch.get("x") == "both"
        for number in range(_CELLS):
            session.run(f"x = {number}")
            branch.run(f"x = -{number}")
        for each in (session, branch):
            die(each)
        assert (session.get("x"), branch.get("x")) == (_CELLS - 1, 1 - _CELLS)
