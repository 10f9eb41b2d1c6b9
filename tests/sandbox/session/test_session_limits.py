"""Time, death, memory, processes and output of cells against their limits."""

from __future__ import annotations

import psutil
import pytest

from repl_sandbox import Killed, Limits, Raised, Sandbox, Session, SessionClosed, TimedOut
from tests.internals import worker_pid
from tests.sandbox.conftest import Clock
from tests.waiting import eventually


@pytest.fixture
def sandbox(in_each_tier: Sandbox) -> Sandbox:
    return in_each_tier


def test_a_timeout_interrupts_and_keeps_the_state(session: Session, clock: Clock) -> None:
    session.run("n = 0")
    endless = "while True:\n    n += 1\n    if n == 1: print('so far')"
    outcome = session.run(endless, on_output=clock.strike)

    assert isinstance(outcome, TimedOut)
    assert (outcome.clock, outcome.state, outcome.stdout) == ("execution", "kept", "so far\n")
    assert session.run("n > 0").value == "True"


@pytest.mark.parametrize("seconds", [3e6, 1e12, 1e300])
def test_a_timeout_may_be_longer_than_the_kernel_counts(session: Session, seconds: float) -> None:
    assert session.run("1 + 1", timeout=seconds).value == "2"


# Each says "so far" when it has come to where no interrupt stops it.
@pytest.mark.parametrize(
    "code",
    [
        # The first number is how many bytes were written.
        "import itertools, os\n"
        "sum(itertools.chain(map(os.write, (1,), (b'so far\\n',)), range(10**13)))",
        # Asleep, because CPython up to 3.12 lets an interrupt at a jump leave the `try` around it.
        "import time\nsaid = False\nwhile True:\n    try:\n"
        "        if not said:\n            said = True\n            print('so far')\n"
        "        time.sleep(60)\n"
        "    except BaseException: pass",
        "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])\n"
        "print('so far')\nwhile True: pass",
        "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nprint('so far')\n"
        "while True: pass",
    ],
    ids=["C loop", "swallowed", "blocked", "ignored"],
)
def test_a_cell_that_ignores_interrupts_is_killed_with_its_output_kept(
    sandbox: Sandbox, code: str, clock: Clock
) -> None:
    with sandbox.session(limits=Limits(timeout=60, grace=0.1)) as session:
        session.run("x = 1")
        outcome = session.run(code, on_output=clock.strike)

        assert isinstance(outcome, TimedOut)
        assert (outcome.clock, outcome.state, outcome.stdout) == (
            "execution",
            "rolled_back",
            "so far\n",
        )
        assert session.run("x").value == "1"


def test_an_interrupt_does_not_affect_the_next_cell(session: Session) -> None:
    for _ in range(20):
        assert isinstance(session.run("while True: pass", timeout=0.01), TimedOut)
        assert session.run("sum(range(1000))").value == "499500"


def test_files_survive_the_restart_of_a_session(session: Session) -> None:
    session.run("open('note', 'w').write('kept')")
    assert isinstance(session.run("import os; os._exit(1)"), Killed)
    assert session.run("open('note').read()").value == "'kept'"


# ── death ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("code", "reason", "name"),
    [
        ("import os; print('so far'); os._exit(0)", "exit", ""),
        ("import ctypes; print('so far'); ctypes.string_at(0)", "signal", "SIGSEGV"),
        ("import os; print('so far'); os.abort()", "signal", "SIGABRT"),
        (
            "import os, signal; print('so far'); os.kill(os.getpid(), signal.SIGKILL)",
            "signal",
            "SIGKILL",
        ),
        ("import os; print('so far'); os.kill(os.getpid(), 40)", "signal", ""),
    ],
    ids=["exit", "segmentation fault", "abort", "kill", "a signal without a name"],
)
def test_a_cell_that_ends_its_process_is_killed_and_the_session_goes_on(
    session: Session, code: str, reason: str, name: str
) -> None:
    outcome = session.run(code)

    assert isinstance(outcome, Killed)
    assert (outcome.reason, outcome.state, outcome.stdout) == (reason, "rolled_back", "so far\n")
    assert (outcome.signal_name, outcome.signal > 0) == (name, reason == "signal")
    assert session.run("1 + 1").value == "2"


def test_a_session_that_died_between_cells_says_that_it_was_brought_back(session: Session) -> None:
    wait = "def end():\n    while not os.path.exists('end'): time.sleep(0.01)\n    os._exit(0)"
    session.run(f"x = 1\nimport os, threading, time\n{wait}\nthreading.Thread(target=end).start()")
    session.get("x")  # answered once the worker has a snapshot
    worker = psutil.Process(worker_pid(session))
    session.files.put("end", b"")
    assert not psutil.wait_procs([worker], timeout=60)[1]
    outcome = session.run("x")

    assert (outcome.value, outcome.state) == ("1", "rolled_back")


def test_a_state_beside_a_busy_thread_is_the_one_to_return_to(session: Session) -> None:
    spin = "def spin():\n    while True: pass"
    session.run(f"import os, sys, threading\nsys.setswitchinterval(1e-6)\n{spin}")
    for number in range(12):
        session.run(f"x = {number}\nthreading.Thread(target=spin, daemon=True).start()")
        assert session.run("os._exit(0)").state == "rolled_back"
        assert session.run("x").value == str(number)


def test_a_forked_child_of_a_cell_does_not_answer_for_it(session: Session) -> None:
    outcome = session.run(
        "import os\npid = os.fork()\nif pid: os.waitpid(pid, 0)\n"
        "print('parent' if pid else 'child')"
    )
    assert outcome.stdout == "child\nparent\n"
    assert session.run("1 + 1").value == "2"


@pytest.mark.parametrize(
    ("code", "status", "stderr"),
    [
        ("pass", 0, ""),
        ("raise SystemExit", 0, ""),
        ("raise SystemExit(3)", 3, ""),
        ("raise SystemExit(-1)", 255, ""),
        ("raise SystemExit('why')", 1, "why\n"),
        ("1 / 0", 1, "ZeroDivisionError: division by zero\n"),
    ],
)
def test_a_forked_child_exits_as_a_program_does(
    session: Session, code: str, status: int, stderr: str
) -> None:
    session.run("import os")
    outcome = session.run(f"pid = os.fork()\nif pid == 0: {code}\nelse: end = os.wait()[1]")
    assert outcome.ok, outcome
    assert session.run("os.waitstatus_to_exitcode(end)").value == str(status)
    assert outcome.stderr.endswith(stderr)
    assert bool(outcome.stderr) == bool(stderr)


# ── limits ────────────────────────────────────────────────────────────────────────────────────


def test_memory_beyond_the_limit_is_a_memory_error(sandbox: Sandbox) -> None:
    with sandbox.session(limits=Limits(memory="64MiB")) as session:
        outcome = session.run("data = bytearray(100 << 20)")
        assert isinstance(outcome, Raised)
        assert outcome.error is not None
        assert outcome.error.type == "MemoryError"
        assert "(Limits.memory, 64 MiB)" in outcome.error.traceback
        assert session.run("len(bytearray(10 << 20))").value == str(10 << 20)


def test_memory_of_all_processes_together_is_limited(sandbox: Sandbox) -> None:
    with sandbox.session(limits=Limits(memory="100MiB")) as session:
        outcome = session.run(
            "import os, time\n"
            "for _ in range(4):\n"
            "    if os.fork() == 0:\n"
            "        held = b'x' * (60 << 20)\n"
            "        time.sleep(60)\n"
            "time.sleep(60)"
        )
        assert isinstance(outcome, Killed)
        assert outcome.reason == "memory"
        assert session.run("1 + 1").value == "2"


def test_cpu_seconds_are_limited(sandbox: Sandbox) -> None:
    with sandbox.session(limits=Limits(cpu_seconds=1)) as session:
        outcome = session.run("while True: pass", timeout=120)
        assert isinstance(outcome, Killed)
        assert outcome.reason == "cpu"


def test_cpu_time_of_children_and_of_what_goes_on_between_cells_is_counted(
    sandbox: Sandbox,
) -> None:
    burn = "import time\nend = time.process_time() + 0.1\nwhile time.process_time() < end: pass"
    with sandbox.session() as session:
        session.run("import subprocess, sys")
        before = session.cpu_seconds
        outcome = session.run(f"subprocess.run([sys.executable, '-c', {burn!r}])")
        assert outcome.usage.cpu_seconds < 0.1
        assert session.cpu_seconds - before > 0.07  # the kernel rounds down, for each process
        # A child without a waiting parent.
        session.run(
            "import os\n"
            "if os.fork() == 0:\n"
            "    if os.fork() == 0:\n"
            f"        exec({burn!r})\n"
            "    os._exit(0)"
        )
        eventually(lambda: session.cpu_seconds - before >= 0.15)
    with pytest.raises(SessionClosed):
        _ = session.cpu_seconds


def test_processes_and_files_are_limited_and_the_error_names_the_limit(sandbox: Sandbox) -> None:
    with sandbox.session(limits=Limits(processes=8, open_files=20, file_size="1MiB")) as session:
        for code, name in (
            (
                "import threading, time\n[threading.Thread(target=time.sleep, args=(1,)).start()"
                " for _ in range(20)]",
                "Limits.processes",
            ),
            ("files = [open('/dev/null') for _ in range(40)]", "Limits.open_files"),
            ("open('big', 'wb').write(bytes(2 << 20))", "Limits.file_size"),
        ):
            outcome = session.run(code)
            assert isinstance(outcome, Raised), code
            assert outcome.error is not None
            assert name in outcome.error.traceback
