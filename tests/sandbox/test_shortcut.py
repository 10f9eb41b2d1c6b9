"""The shortcut: a session that is stepped fast goes by pipes, and only a clock can tell."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import random
import threading
from collections.abc import Iterator
from typing import Any

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
from repl_sandbox.session.batch import Batch
from repl_sandbox.wire import frames, shortcut
from tests.sandbox.conftest import PATIENT
from tests.security.test_hostile_worker import PRELUDE
from tests.waiting import eventually

# More than a worker waits for before it asks.
FAST = 40
# Of the worker, which has no other pipes that end at this side.
PIPES = """
import os, stat
def is_pipe(fd):
    try:
        return stat.S_ISFIFO(os.fstat(fd).st_mode)
    except OSError:
        return False
def pipes():
    return [fd for fd in range(3, 1024) if is_pipe(fd)]
"""


@pytest.fixture(scope="module", params=["jailed", "confined"])
def restarting(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    python = None if request.param == "jailed" else request.getfixturevalue("open_python")
    with Sandbox(
        isolation=request.param, python=python, limits=PATIENT, recovery="restart"
    ) as sandbox:
        yield sandbox


@pytest.fixture
def stepped(restarting: Sandbox) -> Iterator[Session]:
    limits = Limits(timeout=60, grace=0.3)
    with restarting.session(host={"double": lambda x: 2 * x}, limits=limits) as session:
        step(session)
        assert is_short(session)
        yield session


def step(session: Session, times: int = FAST) -> None:
    for number in range(times):
        outcome = session.run(f"x = {number}")
        assert isinstance(outcome, Finished), outcome


def is_short(session: Session) -> bool:
    return session._core.links.shortcut is not None


def test_no_message_begins_as_the_bell_does() -> None:
    assert shortcut.BELL[0] << 24 > frames.MAX_HEADER


def test_all_that_a_cell_says_is_as_without(stepped: Session) -> None:
    outcome = stepped.run("print('out')\nimport sys\nprint('err', file=sys.stderr)\nx")
    assert isinstance(outcome, Finished)
    assert (outcome.stdout, outcome.stderr, outcome.value) == ("out\n", "err\n", str(FAST - 1))
    assert [each.name for each in outcome.changes] == ["sys"]
    assert stepped.run("double(21)").value == "42"
    assert isinstance(stepped.run("1/0"), Raised)
    heard: list[str] = []
    stepped.run("print('heard')", on_output=lambda _, text: heard.append(text))
    assert "".join(heard) == "heard\n"
    assert is_short(stepped)


def test_what_was_written_belongs_to_its_cell(stepped: Session) -> None:
    for number in range(200):
        outcome = stepped.run(f"print({number})" if number % 2 else "pass")
        assert outcome.stdout == (f"{number}\n" if number % 2 else "")


@pytest.mark.parametrize("size", [shortcut.MOST - 30, shortcut.MOST, 100_000, 3 << 20])
def test_a_long_cell_and_what_it_shows_come_whole(stepped: Session, size: int) -> None:
    for _ in range(3):
        text = "é" * (size // 2)
        assert stepped.run(f"y = '{text}'\nlen(y)").value == str(size // 2)
        shown = stepped.run(f"'a' * {size}").value
        assert shown is not None and shown[:100] == "'" + "a" * 99
        assert len(shown) == size + 2 or size > 1 << 20
        assert stepped.run("x").value == str(FAST - 1)


def test_questions_are_answered_between_the_cells(stepped: Session) -> None:
    for number in range(20):
        stepped.set("small", number)
        assert stepped.run("small").value == str(number)
        assert stepped.get("x") == FAST - 1
        stepped.set("large", "é" * 200_000)
        assert stepped.run("len(large)").value == "200000"
        assert "large" in [each.name for each in stepped.variables()]
    stepped.files.put("a.txt", b"text")
    assert stepped.run("open('a.txt').read()").value == "'text'"
    assert is_short(stepped)


def test_a_checkpoint_is_made_and_loaded() -> None:
    with Sandbox(limits=PATIENT, recovery="restart") as sandbox:
        with sandbox.session() as session:
            step(session)
            data = session.checkpoint()
            step(session)
            assert is_short(session)
        with sandbox.restore(data) as other:
            step(other)
            assert other.run("x").value == str(FAST - 1) and is_short(other)


def test_threads_of_the_code_share_it(stepped: Session) -> None:
    """One of them reads for all while it waits for the host, between cells as well."""
    stepped.run(
        "import threading\n"
        "calls, stop = [0], threading.Event()\n"
        "def call():\n"
        "    while not stop.is_set():\n"
        "        try:\n"
        "            assert double(4) == 8\n"
        "            calls[0] += 1\n"
        "        except HostCallError:\n"  # its cell has ended
        "            pass\n"
        "threads = [threading.Thread(target=call) for _ in range(3)]\n"
        "for thread in threads: thread.start()"
    )
    for number in range(30):
        assert stepped.run(f"{number} + 1").value == str(number + 1)
        assert stepped.get("x") == FAST - 1
        stepped.run("while calls[0] < 3: pass\ncalls[0] = 0")
    stepped.run("stop.set()\nfor thread in threads: thread.join()")
    step(stepped)
    assert stepped.run("double(21)").value == "42" and is_short(stepped)


def test_a_child_of_a_cell_has_no_part_in_it(stepped: Session) -> None:
    stepped.run(PIPES)
    assert len(stepped.run("pipes()").value or "") > 2
    outcome = stepped.run(
        "r, w = os.pipe()\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    os.write(w, repr(set(pipes()) - {r, w}).encode())\n"
        "    os._exit(0)\n"
        "os.close(w), os.waitpid(pid, 0)\n"
        "os.read(r, 100)"
    )
    assert outcome.value == "b'set()'"
    step(stepped)


def test_a_program_of_a_cell_has_no_part_in_it(stepped: Session) -> None:
    outcome = stepped.run(
        f"import subprocess, sys\ncode = {PIPES + 'print(pipes())'!r}\n"
        "done = subprocess.run([sys.executable, '-c', code], close_fds=False)\n"
        "done.returncode"
    )
    assert (outcome.stdout, outcome.value) == ("[]\n", "0"), outcome


def test_time_outs_and_interrupts_are_as_without(stepped: Session) -> None:
    outcome = stepped.run("while True: pass", timeout=0.1)
    assert isinstance(outcome, TimedOut) and outcome.state == "kept"
    timer = threading.Timer(0.1, stepped.interrupt)
    timer.start()
    outcome = stepped.run("while True: pass")
    assert isinstance(outcome, Raised) and outcome.error.type == "KeyboardInterrupt"
    timer.join()
    assert stepped.run("x").value == str(FAST - 1) and is_short(stepped)


def test_a_worker_that_dies_is_followed_by_one_that_asks_anew(stepped: Session) -> None:
    for end in ("import os\nos._exit(3)", "import os\nos.closerange(3, 2000)"):
        outcome = stepped.run(end)
        assert isinstance(outcome, Killed) and outcome.state == "restarted"
        assert not is_short(stepped)
        step(stepped)
        assert is_short(stepped)


def test_what_a_cell_said_before_its_worker_died_is_heard(restarting: Sandbox) -> None:
    with restarting.session(answers="strict") as session:
        step(session)
        outcome = session.run("import os\nprint('so far')\nFINAL(42)\nos._exit(0)")
        assert isinstance(outcome, Killed)
        assert ([each.text for each in outcome.answers], outcome.stdout) == (["42"], "so far\n")


def test_a_cell_that_takes_its_time_and_tells_nothing(stepped: Session) -> None:
    stepped.run("import time")
    step(stepped)
    outcome = stepped.run("time.sleep(0.05)", timeout=10)
    assert isinstance(outcome, Finished)
    assert outcome.usage.execution_seconds > 0.05
    assert is_short(stepped)


def test_nothing_of_it_is_left(restarting: Sandbox) -> None:
    def count() -> int:
        return len(os.listdir("/proc/self/fd"))

    gc.collect()  # what other tests have left
    before = count()
    for _ in range(3):
        with restarting.session() as session:
            step(session)
            session.run("import os\nos._exit(0)")
            step(session)
    eventually(lambda: count() <= before)  # what they left may go by itself meanwhile


def test_a_child_of_the_host_has_no_part_in_it(stepped: Session) -> None:
    pid = os.fork()
    if pid == 0:
        short, said = stepped._core.links.shortcut, 1
        try:
            assert short is not None
            short.write(b"nothing")
        except OSError:
            said = 0
        finally:
            os._exit(said)
    assert os.waitpid(pid, 0)[1] == 0
    step(stepped)
    assert is_short(stepped)


def test_who_has_no_descriptors_left_does_without(
    stepped: Session, restarting: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    with restarting.session() as session:
        session.run(
            "import os\nkept = []\n"
            "try:\n    while True: kept.append(os.dup(0))\n"
            "except OSError: pass"
        )
        step(session)
        session.run("for fd in kept: os.close(fd)")
        assert session.run("x").value == str(FAST - 1)

    def refuse(flags: int) -> tuple[int, int]:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with restarting.session() as session:
        monkeypatch.setattr(os, "pipe2", refuse)
        step(session)
        monkeypatch.undo()
        assert session.run("x").value == str(FAST - 1) and not is_short(session)


def test_a_session_with_copies_does_without() -> None:
    with Sandbox(limits=PATIENT) as sandbox, sandbox.session() as session:
        step(session)
        assert not is_short(session)


def test_a_batch_steps_many(restarting: Sandbox) -> None:
    sessions = [restarting.session() for _ in range(4)]
    batch = Batch()
    for number in range(FAST):
        outcomes = batch.run([(each, f"x = {number}\nx", None) for each in sessions])
        assert {getattr(each, "value", each) for each in outcomes} == {str(number)}
    assert all(map(is_short, sessions))
    for session in sessions:
        session.close()


def test_sessions_on_a_loop_are_stepped(restarting: Sandbox) -> None:
    async def steps(sandbox: AsyncSandbox, start: int) -> bool:
        async with await sandbox.session() as session:
            for number in range(start, start + FAST):
                assert (await session.run(f"x = {number}\nx")).value == str(number)
            await session.set("large", "é" * 200_000)
            assert (await session.run("len(large)")).value == "200000"
            assert (await session.run("print('out')")).stdout == "out\n"
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(session.run("while True: pass"), 0.2)
            assert (await session.run("x")).value == str(start + FAST - 1)
            return session._core.links.shortcut is not None

    async def all_of_them() -> list[bool]:
        async with AsyncSandbox(limits=PATIENT, recovery="restart") as sandbox:
            return await asyncio.gather(*(steps(sandbox, 100 * n) for n in range(4)))

    assert asyncio.run(all_of_them()) == [True] * 4


# ── code that means harm ──────────────────────────────────────────────────────────────────────────


def _ends(session: Session) -> tuple[int, int]:
    """The numbers of the pipes in the session: the one to read, the one to write."""
    session.run(PIPES)
    outcome: Any = session.run("import fcntl\npipes()")
    first, second = (int(number) for number in outcome.value.strip("[]").split(","))
    is_read = session.run(f"fcntl.fcntl({first}, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY")
    return (first, second) if is_read.value == "True" else (second, first)


@pytest.mark.parametrize(
    "said",
    [
        r"b'\xff' * 100",
        r"b'GET / HTTP/1.1\r\n\r\n' * 10",
        r"bytes(2000)",
        r"b'\0\0\0\x11\0\0\0\0\2' + bytes(16)",  # the result of another cell
        r"b'\0\0\0\x11\0\0\0\0\2' + b'\xff' * 16",
    ],
)
def test_a_worker_that_breaks_the_protocol_there_is_killed(stepped: Session, said: str) -> None:
    _, results = _ends(stepped)
    outcome = stepped.run(f"os.write({results}, {said})\nimport time\ntime.sleep(600)")
    assert isinstance(outcome, Killed) and outcome.reason == "protocol"
    step(stepped)


def test_a_half_message_there_is_none(stepped: Session) -> None:
    _, results = _ends(stepped)
    outcome = stepped.run(f"os.write({results}, bytes(3))", timeout=0.2)
    assert isinstance(outcome, (Killed, TimedOut))
    step(stepped)


def test_closing_either_costs_no_more_than_the_worker(stepped: Session) -> None:
    for end in (0, 1):
        fd = _ends(stepped)[end]
        outcome = stepped.run(f"os.close({fd})")
        assert isinstance(outcome, (Finished, Killed))
        stepped.run("pass")
        step(stepped)
        assert is_short(stepped)


def test_reading_what_is_meant_for_the_worker_costs_no_more_than_the_worker(
    stepped: Session,
) -> None:
    """Which of the two is first is chance, so the thread goes on until it was once."""
    commands, _ = _ends(stepped)
    stepped.run(
        "import threading\n"
        "def steal():\n"
        f"    while os.read({commands}, 9): pass\n"
        "threading.Thread(target=steal).start()"
    )
    for _ in range(1000):
        outcome = stepped.run("x", timeout=0.3)
        if not isinstance(outcome, Finished):
            break
        assert outcome.value == str(FAST - 1)
    assert isinstance(outcome, (Killed, TimedOut)) and outcome.state == "restarted"
    step(stepped)
    assert is_short(stepped)


def test_who_says_at_once_all_that_fits_is_heard_in_bounds(restarting: Sandbox) -> None:
    limits = Limits(timeout=5, grace=0.2)
    with restarting.session(limits=limits) as session:
        step(session)
        _, results = _ends(session)
        outcome = session.run(f"while True: os.write({results}, bytes(4096))")
        assert isinstance(outcome, Killed) and outcome.reason == "protocol"
        step(session)


def test_pipes_are_given_once(stepped: Session) -> None:
    outcome = stepped.run(
        PRELUDE + f"say(call(900, {stepped._core.cell + 1}, '_pipes'))\ntime.sleep(600)"
    )
    assert isinstance(outcome, Killed) and outcome.reason == "protocol"
    step(stepped)


def test_who_has_copies_is_given_none() -> None:
    with Sandbox(limits=PATIENT) as sandbox, sandbox.session() as session:
        outcome = session.run(
            PRELUDE + "say(call(900, 1, '_pipes'))\n"
            "data, attached, _, _ = wire.recvmsg(1 << 16, socket.CMSG_SPACE(64))\n"
            "b'Cancelled' in data, attached"
        )
        assert outcome.value == "(True, [])"


# ── found by review ───────────────────────────────────────────────────────────────────────────────


def test_a_reply_that_is_half_read_when_its_cell_ends_is_read_to_its_end(
    restarting: Sandbox,
) -> None:
    """A cell that comes by the pipe after that is not taken for a part of it."""
    numbers = random.Random(1)
    timers: list[threading.Timer] = []

    def big() -> str:
        if timers:
            timers.pop().start()  # by now the cell runs, so that there is one to interrupt
        return "a" * 170_000

    with restarting.session(host={"big": big}) as session:
        step(session)
        for _ in range(60):
            timer = threading.Timer(numbers.uniform(0, 0.01), session.interrupt)
            timers.append(timer)
            outcome = session.run("while True: big()")
            timer.join()
            assert isinstance(outcome, Raised) and outcome.state == "kept"
            assert session.run("x", timeout=20).value == str(FAST - 1)
        assert is_short(session)


@pytest.mark.parametrize("size", [205_000, 210_000, 215_000, 220_000])
def test_a_worker_is_told_when_its_socket_has_what_had_no_room_there(
    restarting: Sandbox, size: int
) -> None:
    """The reply that nobody waits for any more fills the socket, and a long cell stands behind."""

    given_up = threading.Event()

    def big() -> str:
        session.interrupt()
        assert given_up.wait(60)
        return "a" * size

    with restarting.session(host={"big": big}) as session:
        session.run(PRELUDE + "import select")
        step(session)
        for _ in range(40):  # it was lost in some of them
            given_up.clear()
            # Until the reply comes, for which nobody waits.
            session.run(
                "try: big()\nexcept KeyboardInterrupt: print()\nselect.select([wire], [], [])",
                on_output=lambda *_: given_up.set(),
            )
            assert session.run("x  #" + "#" * 5_000, timeout=20).value == str(FAST - 1)


def test_only_results_come_by_it(stepped: Session) -> None:
    """Who is refused without end, and reads no refusal, would fill the host's memory."""
    _, results = _ends(stepped)
    outcome = stepped.run(
        PRELUDE + f"more = call(900, {stepped._core.cell + 1}, 'n' * 1000)\n"
        f"while True: os.write({results}, more)",
        timeout=2,
    )
    assert isinstance(outcome, Killed) and outcome.reason == "protocol"
    assert len(stepped._core.outbox) < 2 << 20
