"""A worker that dies loses the cell that killed it, and nothing else."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from typing import Literal

import psutil
import pytest

from repl_sandbox import (
    AsyncSandbox,
    Finished,
    Killed,
    Limits,
    Outcome,
    Policy,
    Raised,
    Sandbox,
    SandboxError,
    Session,
    SessionClosed,
    TimedOut,
)
from repl_sandbox.session.blocking import BlockingWait
from repl_sandbox.session.io import SessionIO
from tests.internals import init_pid, session_core, session_links, worker_pid
from tests.sandbox.conftest import PATIENT, STUBBORN, Clock
from tests.waiting import LONG, eventually

# Ways in which a cell ends its worker, or has it ended; each first says "so far".
DEATHS = {
    "C loop": (
        # The first number is how many bytes were written: so the loop has begun.
        "import itertools, os\n"
        "sum(itertools.chain(map(os.write, (1,), (b'endless\\n',)), range(10**13)))"
    ),
    "interrupts ignored": (
        "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "print('endless', flush=True)\nwhile True: pass"
    ),
    "exit": "import os; os._exit(1)",
    "segmentation fault": "import ctypes; ctypes.string_at(0)",
    "memory bomb": (
        # Several processes together, none too large by itself: the limit of one process raises an
        # exception.
        "import os, time\n"
        "for _ in range(4):\n"
        "    if os.fork() == 0:\n"
        "        hold = bytearray(b'x') * (120 << 20)\n"
        "        time.sleep(100)\n"
        "time.sleep(100)"
    ),
    "recursion in C": (
        "import ctypes\npattern = ctypes.create_string_buffer(256)\n"
        "ctypes.CDLL(None).regcomp(pattern, b'(' * 10**6, 1)"  # glibc parses by recursion
    ),
    "every descriptor closed": "import os\nos.closerange(0, 4096)\nwhile True: pass",
    "its parent killed": (
        "import os, signal\ntry: os.kill(os.getppid(), signal.SIGKILL)\n"
        "except OSError: pass\nos.kill(os.getpid(), signal.SIGKILL)"
    ),
}


# Only the clock ends these, which say when they have come to where no interrupt ends them. Of the
# others each has its own end, however busy the machine is.
ENDLESS = ("C loop", "interrupts ignored")
SECONDS = {death: 0.5 if death in ENDLESS else 60.0 for death in DEATHS}


@pytest.mark.parametrize("death", DEATHS)
def test_after_a_death_variables_and_files_are_as_before_the_cell(
    copied: Session, death: str, clock: Clock
) -> None:
    def end_endless(stream: str, text: str) -> None:
        if "endless" in text:
            clock.jump(1000)

    copied.run("x = [1, 2]\nopen('kept', 'w').write('before')")
    spoil = "x.append(3)\ny = 1\nopen('kept', 'w').write('spoilt')\nopen('new', 'w').close()\n"
    code = f"{spoil}print('so far', flush=True)\n{DEATHS[death]}"
    outcome = copied.run(code, on_output=end_endless)

    assert isinstance(outcome, Killed | TimedOut)
    assert (outcome.state, outcome.lost) == ("rolled_back", ())
    assert outcome.stdout.startswith("so far\n")
    look = "import os\nx, 'y' in globals(), open('kept').read(), os.listdir()"
    assert copied.run(look).value == "([1, 2], False, 'before', ['kept'])"
    assert copied.run("x.append(4); x").value == "[1, 2, 4]"


def test_a_session_whose_init_is_ended_says_so(recovering: Sandbox) -> None:
    with recovering.session() as session:
        psutil.Process(init_pid(session)).kill()
        with pytest.raises(SessionClosed, match="init"):
            # The kernel may take its time to end them all.
            eventually(lambda: not session.run("pass").ok)


def test_a_death_in_the_last_of_a_hundred_cells_loses_only_that(copied: Session) -> None:
    copied.run("import os\nseen = []")
    for number in range(98):
        assert copied.run(f"seen.append({number})").ok
    assert copied.run("seen.append('lost'); os._exit(1)").state == "rolled_back"
    assert copied.run("seen == list(range(98))").value == "True"


def test_consecutive_deaths_are_each_recovered(copied: Session) -> None:
    copied.run("import os\nn = 0")
    for number in range(10):
        outcome = copied.run("n += 100; os._exit(1)")
        assert (outcome.state, outcome.lost) == ("rolled_back", ())
        assert copied.run("n += 1; n").value == str(number + 1)


def test_a_death_right_after_a_recovery_is_recovered(copied: Session) -> None:
    copied.run("import os\nn = 1")
    for _ in range(5):
        assert copied.run("os._exit(1)").state == "rolled_back"
    assert copied.run("n").value == "1"


def test_before_the_first_cell_there_is_nothing_to_lose(copied: Session) -> None:
    copied.files.put("given", b"by the host")
    outcome = copied.run("import os\nopen('given', 'w').close()\nos._exit(1)")
    assert (outcome.state, outcome.lost) == ("rolled_back", ())
    assert copied.run("open('given').read(), 'os' in globals()").value == "('by the host', False)"


# Values set before the first cell go with the first message to a worker, and are sent to the next
# worker too. Larger values take a request of their own, and then there is a snapshot.
FEW, MANY = "context", "context" * 10_000


@pytest.mark.parametrize("text", [FEW, MANY], ids=["few", "many"])
def test_variables_set_by_the_host_are_restored(copied: Session, text: str) -> None:
    copied.set("text", text)
    copied.set("numbers", [1, {"a": None}])
    assert copied.run("del text, numbers\nimport os; os._exit(1)").state == "rolled_back"
    assert copied.get("text") == text
    assert copied.get("numbers") == [1, {"a": None}]


def test_variables_set_first_are_no_change_of_the_first_cell(session: Session) -> None:
    session.set("text", FEW)
    session.set("data", b"\x00")
    outcome = session.run("n = 1; text, data")
    assert outcome.value == "('context', b'\\x00')"
    assert [change.name for change in outcome.changes] == ["n"]


@pytest.mark.parametrize("text", [FEW, MANY], ids=["few", "many"])
def test_a_session_that_starts_empty_has_nothing_that_was_set(text: str) -> None:
    with Sandbox(recovery="restart") as sandbox, sandbox.session() as session:
        session.set("text", text)
        assert session.run("import os; os._exit(1)").state == "restarted"
        assert [variable.name for variable in session.variables()] == []


def test_variables_that_no_worker_received_survive_a_death() -> None:
    with Sandbox(recovery="restart") as sandbox, sandbox.session() as session:
        worker = psutil.Process(worker_pid(session))
        worker.kill()
        worker.wait(LONG)
        session.set("text", FEW)
        assert session.run("text").value == repr(FEW)


def test_values_that_a_session_may_refuse_are_refused_as_they_are_set(session: Session) -> None:
    """Like a number with more digits than the interpreter parses by default."""
    digits = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    try:
        with pytest.raises(SandboxError, match=r"^number: .*ValueError"):
            session.set("number", 10**5000)
    finally:
        sys.set_int_max_str_digits(digits)
    assert session.run("'number' in globals()").value == "False"


def test_many_variables_and_long_names_may_be_set_first(session: Session) -> None:
    names = [f"variable{number}" for number in range(1200)]
    for name in names:
        session.set(name, "")
    session.set("n" * 100_000, 1)
    there = f"sum(map(len, map(globals().get, {names}))), {'n' * 100_000}"
    assert session.run(there).value == "(0, 1)"


def test_a_branch_has_the_first_variables_and_then_its_own(copied: Session) -> None:
    copied.set("text", FEW)
    with copied.branch() as branch:
        branch.set("text", "its own")
        assert branch.run("import os; os._exit(1)").state == "rolled_back"
        assert (branch.get("text"), copied.get("text")) == ("its own", FEW)


def test_interrupts_and_timeouts_work_after_a_recovery(recovering: Sandbox, clock: Clock) -> None:
    endless = "print('endless')\nwhile True: pass"
    with recovering.session(limits=PATIENT) as session:
        session.run("import os\nx = 1")
        session.run("os._exit(1)")
        outcome = session.run(f"n = 5\n{endless}", on_output=clock.strike)
        assert isinstance(outcome, TimedOut)
        assert outcome.state == "kept"
        outcome = session.run(endless, on_output=lambda *_: session.interrupt())
        assert isinstance(outcome, Raised)
        assert outcome.error is not None
        assert outcome.error.type == "KeyboardInterrupt"
        assert session.run("n + x").value == "6"


def test_a_restarting_sandbox_keeps_no_copies(sandbox: Sandbox) -> None:
    with (
        Sandbox(recovery="restart", isolation="jailed") as restarting,
        restarting.session() as session,
    ):
        session.run("x = 1")
        outcome = session.run("import os; os._exit(1)")
        assert (outcome.state, outcome.lost) == ("restarted", ())
        assert isinstance(session.run("x"), Raised)
        with pytest.raises(SandboxError, match="recovery"):
            session.rollback()


@pytest.mark.parametrize(
    ("arguments", "error", "name"),
    [
        ({"recovery": "undo"}, ValueError, "recovery"),
        ({"recovery": None}, ValueError, "recovery"),
        ({"history": -1}, ValueError, "history"),
        ({"history": 10**9}, ValueError, "history"),
        ({"history": True}, TypeError, "history"),
        ({"history": 1.5}, TypeError, "history"),
    ],
)
def test_bad_arguments_are_named(
    arguments: dict[str, object], error: type[Exception], name: str
) -> None:
    with pytest.raises(error, match=name):
        Sandbox(**arguments)  # type: ignore[arg-type]


# ── what the host has given ───────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("recovery", "state", "value"),
    [("snapshot", "kept", "[1]"), ("restart", "restarted", None)],
)
def test_a_loss_found_by_a_request_is_reported_by_the_next_cell(
    recovery: Literal["snapshot", "restart"], state: str, value: str | None
) -> None:
    with Sandbox(limits=PATIENT, recovery=recovery) as sandbox, sandbox.session() as session:
        session.run("x = [1]")
        session.get("x")  # a snapshot is taken before a request is answered
        links = session_links(session)
        os.kill(links.worker_pid, signal.SIGKILL)
        select.select([links.worker], [], [])
        session.variables()
        outcome = session.run("x")
        assert (outcome.value, outcome.state) == (value, state)
        assert session.run("1 + 1").state == "kept"


def test_host_functions_are_there_after_a_recovery(recovering: Sandbox) -> None:
    with recovering.session(host={"double": lambda n: 2 * n}) as session:
        session.run("import os\nx = double(4)")
        session.run("os._exit(1)")
        assert session.run("double(x)").value == "16"


def test_a_call_in_flight_ends_with_its_cell(recovering: Sandbox) -> None:
    release, called = threading.Event(), threading.Event()

    def slow() -> str:
        called.set()
        release.wait(60)
        return "late"

    host = {"slow": slow, "quick": lambda: "now", "begun": called.is_set}
    with recovering.session(host=host) as session:
        session.run("import os, threading\nx = 1")
        # The call has the host's attention when the worker dies.
        outcome = session.run(
            "threading.Thread(target=slow).start()\nwhile not begun(): pass\nos._exit(1)"
        )
        assert outcome.state == "rolled_back"
        result = session.run("quick(), x")
        release.set()
        assert result.value == "('now', 1)"
        assert session.run("quick(), x").value == "('now', 1)"


def test_answers_survive_a_recovery_and_can_be_sent_after_it(recovering: Sandbox) -> None:
    with recovering.session(answers="strict") as session:
        session.run("import os")
        outcome = session.run("FINAL(1)\nos._exit(1)")
        assert outcome.state == "rolled_back"
        assert [answer.value for answer in outcome.answers] == [1]
        assert [answer.value for answer in session.run("FINAL(2)").answers] == [2]


def test_earlier_output_can_be_read_after_a_recovery(copied: Session) -> None:
    copied.run("import os\nprint('first')")
    copied.run("print('second', flush=True)\nos._exit(1)")
    assert copied.run("str(_out[1]), str(_out[2])").value == r"('first\n', 'second\n')"


def test_a_restricted_policy_applies_after_a_recovery(recovering: Sandbox, clock: Clock) -> None:
    policy = Policy(language="restricted", imports=["math"])
    with (
        Sandbox(isolation="jailed", policy=policy, limits=Limits(grace=0.1)) as sandbox,
        sandbox.session(host={"double": lambda n: 2 * n}) as session,
    ):
        session.run("import math\nx = math.floor(2.5)")
        assert session.run(STUBBORN, on_output=clock.strike).state == "rolled_back"
        assert session.run("double(x) + math.floor(1.5)").value == "5"
        outcome = session.run("import os")
        assert outcome.error is not None
        assert outcome.error.type == "PolicyError"


def test_the_cpu_time_limit_includes_earlier_workers(recovering: Sandbox) -> None:
    burn = "import os, time\nwhile time.process_time() < 0.4: pass\n"
    with recovering.session(limits=Limits(cpu_seconds=1)) as session:
        session.run("x = 1")
        reasons: list[object] = []
        while "cpu" not in reasons and len(reasons) < 5:
            outcome = session.run(f"{burn}os._exit(1)")
            reasons.append(outcome.reason if isinstance(outcome, Killed) else type(outcome))
        assert reasons[0] == "exit"
        assert reasons[-1] == "cpu"


def test_a_recovery_keeps_the_isolation(recovering: Sandbox) -> None:
    with recovering.session() as session:
        session.run("import os\nx = 1")
        before = session.isolation
        session.run("os._exit(1)")
        assert session.isolation == before


def test_a_session_of_a_pool_recovers(sandbox: Sandbox) -> None:
    with Sandbox(ready=2, isolation="jailed") as pooled, pooled.session() as session:
        session.run("import os\nx = 1")
        assert session.run("os._exit(1)").state == "rolled_back"
        assert session.run("x").value == "1"


@pytest.mark.parametrize("cell", ["x = 1", "import os; os._exit(1)", "pass"])
def test_closing_while_a_copy_is_made_ends_everything(recovering: Sandbox, cell: str) -> None:
    for _ in range(5):
        session = recovering.session()
        init = psutil.Process(init_pid(session))
        session.run("data = bytearray(20 << 20)")
        session.run(cell)
        processes = [init, *init.children(recursive=True)]
        session.close()
        _, alive = psutil.wait_procs(processes, timeout=60)
        assert not alive
        with pytest.raises(SessionClosed):
            session.run("1")


def test_async_sessions_recover(open_python: str) -> None:
    async def episode() -> tuple[object, ...]:
        async with AsyncSandbox(isolation="jailed") as sandbox, sandbox.session() as session:
            await session.run("import os\nx = 1")
            outcome = await session.run("x = 2; os._exit(1)")
            return outcome.state, (await session.run("x")).value

    assert asyncio.run(episode()) == ("rolled_back", "1")


def test_the_watchdog_counts_the_code_and_not_the_snapshots(recovering: Sandbox) -> None:
    """Three earlier states that share their contents, and each cell rewrites half of them."""
    with recovering.session() as session:
        session.run("data = [bytearray(1 << 20) for _ in range(60)]")
        for number in range(6):
            outcome = session.run(
                f"import time\nfor part in data[:30]: part[::4096] = bytes([{number}]) * 256\n"
                "end = time.monotonic() + 0.15\nwhile time.monotonic() < end: pass"
            )
            assert isinstance(outcome, Finished), outcome
        assert session.run("import os; os._exit(1)").state == "rolled_back"
        assert session.run("data[0][0]").value == "5"


def test_a_time_out_that_comes_before_the_cell_has_begun_keeps_the_state(
    recovering: Sandbox,
) -> None:
    with recovering.session(limits=PATIENT) as session:
        # Files are stored before the next cell begins, which takes a multiple of the cell's time.
        session.run("x = 1\nfor n in range(1500): open(f'f{n}', 'w').write('x')")
        outcome = session.run("while True: pass", timeout=0.005)
        assert isinstance(outcome, TimedOut)
        assert outcome.state == "kept"
        # The interrupt affects that cell alone.
        assert session.run("for _ in range(10**6): pass").ok
        assert session.get("x") == 1


def test_a_late_interrupt_does_not_affect_the_next_cell(copied: Session) -> None:
    for _ in range(20):
        copied.run("x = 1", timeout=0.0001)
        assert copied.run("for _ in range(10**5): pass").ok


def test_an_interrupt_before_the_first_cell_begins_interrupts_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wait = BlockingWait.wait

    def struck(waiting: BlockingWait, io: SessionIO, seconds: float) -> list[tuple[int, int]]:
        monkeypatch.setattr(BlockingWait, "wait", wait)
        raise KeyboardInterrupt

    with Sandbox(limits=Limits(timeout=60, grace=10)) as sandbox:
        for _ in range(60):
            with sandbox.session() as session:
                worker = worker_pid(session)
                monkeypatch.setattr(BlockingWait, "wait", struck)
                with pytest.raises(KeyboardInterrupt):
                    session.run("while True: pass")
                assert worker_pid(session) == worker  # none had to be killed


@pytest.mark.parametrize("recovery", ["snapshot", "restart"])
def test_a_time_out_while_the_worker_has_no_processor_keeps_the_state(recovery: str) -> None:
    with Sandbox(recovery=recovery, limits=PATIENT) as sandbox, sandbox.session() as session:
        session.run("x = 1")
        session.get("x")  # it is copied by now, where it is, and waits
        worker = psutil.Process(worker_pid(session))
        worker.suspend()

        def go_on() -> None:
            while not _waits_for(worker.pid, signal.SIGINT):
                os.sched_yield()
            worker.resume()

        thread = threading.Thread(target=go_on)
        thread.start()
        outcome = session.run("while True: pass", timeout=0.05)
        thread.join()
        assert isinstance(outcome, TimedOut)
        assert outcome.state == "kept"
        assert session.get("x") == 1
        assert session.run("for _ in range(10**5): pass").ok


def _waits_for(pid: int, number: int) -> bool:
    """Whether the signal was sent to a process that has not taken it yet: proc(5)."""
    with open(f"/proc/{pid}/status") as status:
        masks = [
            int(line.split()[1], 16) for line in status if line.startswith(("SigPnd", "ShdPnd"))
        ]
    return any(mask >> number - 1 & 1 for mask in masks)


def test_a_cell_that_ends_during_its_kill_leaves_one_state() -> None:
    """The kill comes after the result: no outcome may speak of a worker that is doomed."""
    limits = Limits(timeout=60, grace=0.3)
    with Sandbox(limits=limits) as sandbox, sandbox.session() as session:
        # An interrupt that comes before the cell is where it is caught waits until it is.
        block = "from signal import *\npthread_sigmask(SIG_BLOCK, [SIGINT])"
        session.run(f"import time; x = 1\n{block}")
        init, core = psutil.Process(init_pid(session)), session_core(session)
        seen, returned = threading.Event(), threading.Event()

        def delay_the_kill() -> None:
            seen.wait()
            while core.io.init.unacknowledged:
                os.sched_yield()
            init.suspend()
            # On a machine that has kept it waiting, the kill may have come first.
            while (core.running.result is None or core.running.result.cell != 2) and not (
                core.io.worker.dead or returned.is_set()
            ):
                os.sched_yield()
            init.resume()

        thread = threading.Thread(target=delay_the_kill)
        thread.start()
        code = (
            "x = 2\ntry: pthread_sigmask(SIG_UNBLOCK, [SIGINT]); time.sleep(60)\n"
            "except KeyboardInterrupt: print('x', flush=True); time.sleep(0.6)"
        )
        outcome = session.run(code, timeout=0.05, on_output=lambda *_: seen.set())
        returned.set()
        seen.set()
        thread.join()
        found = session.get("x")
        assert isinstance(outcome, TimedOut)
        assert found == {"kept": 2, "rolled_back": 1}[outcome.state]
        assert session.run("x").value == str(found)


def test_memory_of_the_snapshot_alone_is_not_charged_to_the_code(sandbox: Sandbox) -> None:
    """A cell may replace more than half of the memory; the snapshot still has the old contents."""
    with sandbox.session(limits=Limits(memory="200MiB")) as session:
        session.run("x = b'x' * (150 << 20)")
        cell = "del x\nimport time\ny = b'y' * (150 << 20)\ntime.sleep(0.5)\nlen(y)"
        outcome = session.run(cell)
        assert (outcome.state, outcome.value) == ("kept", str(150 << 20))


@pytest.mark.parametrize("before", ["set", "run"])
def test_a_worker_that_was_not_run_keeps_its_state_before_its_timeout(
    copied: Session, before: str
) -> None:
    """The worker has begun no cell and taken no snapshot: its end would lose the state of the last
    cell, too.
    """
    core, worker = session_core(copied), worker_pid(copied)
    if before == "set":
        copied.set("x", 1)
    else:
        copied.run("x = 1")
    os.kill(worker, signal.SIGSTOP)
    outcomes: list[Outcome] = []
    running = threading.Thread(
        target=lambda: outcomes.append(copied.run("x = 2\nwhile True: pass", timeout=0.1))
    )
    running.start()
    eventually(lambda: core.io.worker.kill_ordered or outcomes)
    with suppress(ProcessLookupError):
        os.kill(worker, signal.SIGCONT)
    running.join()
    assert isinstance(outcomes[0], TimedOut)
    assert outcomes[0].lost == ()
    assert copied.get("x") == 1


HELD = """
import os, resource
from repl_sandbox import Sandbox, SandboxError

resource.setrlimit(resource.RLIMIT_NOFILE, (1100, 4096))
with Sandbox(isolation={tier!r}, python={python!r}) as sandbox, sandbox.session() as session:
    assert session.run("import os\\nx = 1").ok
    held = []
    try:
        while True:
            held.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        pass
    for use in (lambda: session.run("os._exit(1)"), lambda: session.run("x"), session.variables):
        try:
            use()
        except SandboxError as error:
            assert "the kept state is intact" in str(error), error
        else:
            raise AssertionError("it had a descriptor")
    for fd in held:
        os.close(fd)
    outcome = session.run("x")
    print(outcome.state, outcome.value, session.run("x += 1\\nx").value)
"""


@pytest.mark.parametrize("tier", ["jailed", "confined", "process"])
def test_a_host_out_of_descriptors_loses_no_state(
    tier: str, request: pytest.FixtureRequest
) -> None:
    """A worker cannot be replaced then, and is when there are some again."""
    python = None if tier == "jailed" else request.getfixturevalue("open_python")
    done = subprocess.run(
        [sys.executable, "-c", HELD.format(tier=tier, python=python)],
        capture_output=True,
        text=True,
        timeout=LONG,
        check=False,
    )
    assert done.stdout == "rolled_back 1 2\n", done.stderr
