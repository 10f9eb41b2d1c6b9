"""Calls from a session to the host."""

from __future__ import annotations

import asyncio
import resource
import signal
import subprocess
import sys
import threading

import pytest

from repl_sandbox import Answer, Finished, HostCallError, Limits, Raised, Sandbox, TimedOut
from tests.sandbox.conftest import Clock
from tests.waiting import LONG


def test_arguments_and_results_are_json(sandbox: Sandbox) -> None:
    def echo(*args: object, **kwargs: object) -> object:
        """Give back what came."""
        return [args, kwargs]

    with sandbox.session(host={"echo": echo}) as session:
        assert session.run("echo(1, 'é', [None], key={'a': 1.5})").value == (
            "[[1, 'é', [None]], {'key': {'a': 1.5}}]"
        )
        assert (
            session.run("echo.__name__, echo.__doc__").value == "('echo', 'Give back what came.')"
        )
        outcome = session.run("echo(object())")
        assert outcome.error is not None
        assert outcome.error.type == "TypeError"


def test_coroutine_functions_are_awaited(sandbox: Sandbox) -> None:
    async def ask(prompt: str) -> str:
        await asyncio.sleep(0)
        return prompt.upper()

    with sandbox.session(host={"ask": ask}) as session:
        assert session.run("ask('hi')").value == "'HI'"


def test_an_exception_of_the_host_carries_type_and_message_only(sandbox: Sandbox) -> None:
    def fail() -> None:
        raise LookupError("no such thing")

    with sandbox.session(host={"fail": fail}) as session:
        outcome = session.run(
            "try:\n    fail()\nexcept HostCallError as error:\n"
            "    print(error.type, '|', error.message, '|', error.__cause__)"
        )
        assert outcome.stdout == "LookupError | no such thing | None\n"


class _Stop(BaseException):
    """An exception that no handler expects."""


@pytest.mark.parametrize(
    "error",
    [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), asyncio.CancelledError(), _Stop()],
)
def test_a_function_that_raises_system_exit_is_an_error(
    sandbox: Sandbox, error: BaseException
) -> None:
    """A function that parses arguments calls `sys.exit`: the cell would wait until its timeout."""

    def plain() -> None:
        raise error

    async def coroutine() -> None:
        raise error

    with sandbox.session(host={"plain": plain, "coroutine": coroutine, "ok": lambda: 1}) as session:
        for function in ("plain", "coroutine", "plain", "coroutine"):
            outcome = session.run(f"{function}()")
            assert outcome.error is not None
            assert outcome.error.type.endswith(HostCallError.__name__)
        assert session.run("ok()").value == "1"


_CTRL_C = """
import os, signal, threading
from repl_sandbox import Sandbox

def block():
    os.kill(os.getpid(), signal.SIGINT)
    threading.Event().wait()

with Sandbox() as sandbox, sandbox.session(host={"block": block}) as session:
    session.run("block()")
"""


def test_one_ctrl_c_ends_a_program_whose_function_blocks() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _CTRL_C], capture_output=True, text=True, timeout=LONG, check=False
    )
    assert done.returncode == -signal.SIGINT
    assert done.stderr.rstrip().endswith("KeyboardInterrupt")


def test_a_result_that_json_cannot_carry_is_an_error_in_the_cell(sandbox: Sandbox) -> None:
    with sandbox.session(host={"bad": lambda: object()}) as session:
        outcome = session.run("bad()")
        assert outcome.error is not None
        assert outcome.error.type == "host.TypeError"
        assert "bad returned what JSON cannot carry" in outcome.error.message


@pytest.mark.parametrize("value", [float("nan"), [[float("inf")]], {1: 1, "1": 2}])
def test_a_result_with_a_wrong_value_is_a_value_error(sandbox: Sandbox, value: object) -> None:
    with sandbox.session(host={"bad": lambda: value}) as session:
        outcome = session.run("bad()")
        assert outcome.error is not None
        assert outcome.error.type == "host.ValueError"


def test_threads_of_a_cell_call_at_once(sandbox: Sandbox) -> None:
    """Eight calls meet at a barrier: none returns unless all are open together."""
    barrier = threading.Barrier(8, timeout=60)

    def meet(number: int) -> int:
        barrier.wait()
        return number * number

    with sandbox.session(host={"meet": meet}) as session:
        outcome = session.run(
            "from concurrent.futures import ThreadPoolExecutor\n"
            "with ThreadPoolExecutor(8) as pool: squares = list(pool.map(meet, range(8)))\n"
            "squares"
        )
    assert outcome.value == "[0, 1, 4, 9, 16, 25, 36, 49]"


def test_waiting_for_the_host_is_not_execution(sandbox: Sandbox, clock: Clock) -> None:
    def slow() -> str:
        clock.jump(200)
        return "done"

    with sandbox.session(host={"slow": slow}) as session:
        outcome = session.run("slow()", timeout=100)
    assert isinstance(outcome, Finished)
    assert outcome.usage.waiting_seconds > 190
    assert outcome.usage.execution_seconds < 100


def test_host_calls_have_a_clock_of_their_own(sandbox: Sandbox) -> None:
    released = threading.Event()
    limits = Limits(timeout=60, grace=60, host_timeout=0.2)
    with sandbox.session(host={"hang": lambda: released.wait(60)}, limits=limits) as session:
        session.run("x = 1")
        outcome = session.run("print('so far')\nhang()")
        released.set()
        assert isinstance(outcome, TimedOut)
        assert (outcome.clock, outcome.state, outcome.stdout) == ("host_call", "kept", "so far\n")
        assert session.run("x").value == "1"


def test_a_thread_that_holds_a_call_open_does_not_stop_the_clock(sandbox: Sandbox) -> None:
    released = threading.Event()
    with sandbox.session(host={"hang": lambda: released.wait(60)}) as session:
        outcome = session.run(
            "import threading\nthreading.Thread(target=hang).start()\nwhile True: pass",
            timeout=0.3,
        )
        released.set()
        assert isinstance(outcome, TimedOut)
        assert outcome.clock == "execution"


def test_a_late_reply_does_not_reach_the_next_cell(sandbox: Sandbox) -> None:
    released = threading.Event()
    calls: list[int] = []

    def slow(number: int) -> int:
        calls.append(number)
        if number == 1:
            released.wait(60)
        return number

    def begun() -> bool:
        return 1 in calls

    with sandbox.session(host={"slow": slow, "begun": begun}) as session:
        session.run(
            "import threading\n"
            "def ask():\n"
            "    try: slow(1)\n"
            "    except HostCallError as error: refused.append(error.type)\n"
            "refused = []\nthread = threading.Thread(target=ask)\nthread.start()\n"
            "while not begun(): pass\nslow(2)"
        )
        released.set()
        assert session.run("slow(3)").value == "3"
        assert session.run("thread.join(); refused").value == "['Cancelled']"
    assert sorted(calls) == [1, 2, 3]


def test_overwritten_functions_are_restored(sandbox: Sandbox) -> None:
    with sandbox.session(host={"tool": lambda: "real"}) as session:
        session.run("tool = lambda: 'forged'")
        assert session.run("tool()").value == "'real'"


def test_functions_are_restored_after_a_restart(sandbox: Sandbox) -> None:
    with sandbox.session(host={"tool": lambda: "real"}) as session:
        session.run("import os; os._exit(1)")
        assert session.run("tool()").value == "'real'"


@pytest.mark.parametrize(
    ("host", "error"),
    [
        ({"x": 1}, TypeError),
        ({1: print}, TypeError),
        ({"not a name": print}, ValueError),
        ({"class": print}, ValueError),
        ({"_hidden": print}, ValueError),
        ({"\N{LATIN SMALL LIGATURE FI}": print}, ValueError),
        ([print], TypeError),
    ],
)
def test_an_invalid_host_function_is_refused(
    sandbox: Sandbox, host: object, error: type[Exception]
) -> None:
    with pytest.raises(error, match="host"):
        sandbox.session(host=host)  # type: ignore[arg-type]


# ── answers ───────────────────────────────────────────────────────────────────────────────────


def test_answers_are_copies_and_survive_the_death_of_the_cell(sandbox: Sandbox) -> None:
    given: list[Answer] = []
    with sandbox.session(answers="strict", on_answer=given.append) as session:
        outcome = session.run("FINAL((1, 2))\nimport os; os._exit(1)")
    assert given == [Answer("FINAL", "(1, 2)", [1, 2])]
    assert outcome.answers == tuple(given)


def test_a_refused_answer_raises_in_the_cell(sandbox: Sandbox) -> None:
    def refuse(answer: Answer) -> None:
        raise ValueError("answer must be a number")

    with sandbox.session(answers="strict", on_answer=refuse) as session:
        outcome = session.run("FINAL('x')")
    assert isinstance(outcome, Raised)
    assert outcome.error is not None
    assert (outcome.error.type, outcome.error.message) == ("ValueError", "answer must be a number")
    assert outcome.answers == ()


def test_an_answer_may_be_validated_by_a_coroutine(sandbox: Sandbox) -> None:
    async def refuse_texts(answer: Answer) -> None:
        await asyncio.sleep(0)
        if not isinstance(answer.value, int):
            raise ValueError("answer must be a number")

    with sandbox.session(answers="strict", on_answer=refuse_texts) as session:
        refused = session.run("FINAL('x')")
        taken = session.run("try: FINAL('y')\nexcept ValueError as e: print(e)\nFINAL(1); FINAL(2)")
    assert refused.error is not None and refused.answers == ()
    assert (refused.error.type, refused.error.message) == ("ValueError", "answer must be a number")
    assert taken.stdout == "answer must be a number\n"
    assert [answer.value for answer in taken.answers] == [1, 2]


def test_printed_forms_are_reported_only_on_request(sandbox: Sandbox) -> None:
    code = "document = 'FINAL(13)'\nprint(document)\nprint('FINAL(42)')"
    with sandbox.session(answers="strict") as session:
        assert session.run(code).answers == ()
    with sandbox.session(answers="compatible") as session:
        (answer,) = session.run(code).answers
    assert (answer.form, answer.text, answer.printed) == ("printed", "42", "FINAL(42)")


# ── workers that break the rules ──────────────────────────────────────────────────────────────

# Finds the worker's own socket and writes to it past the worker's code.
RAW = """
import json, os, struct
def raw(header, blob=b''):
    head = json.dumps(header).encode()
    os.write(1000, struct.pack('!II', len(head), len(blob)) + head + blob)
"""


def test_a_reply_of_a_killed_worker_answers_no_call_of_the_next(sandbox: Sandbox) -> None:
    released = threading.Event()

    def slow(text: str) -> str:
        if text == "first":
            released.wait(60)
        else:
            released.set()
            second.wait(0.3)
        return text

    second = threading.Event()
    limits = Limits(host_timeout=0.2, grace=0.1)
    with sandbox.session(host={"slow": slow}, limits=limits) as session:
        outcome = session.run(
            "from signal import *\npthread_sigmask(SIG_BLOCK, [SIGINT])\nslow('first')"
        )
        assert outcome.state == "rolled_back"
        code = "try: print(slow('second'))\nexcept BaseException as error: print(type(error))"
        assert "first" not in session.run(code).stdout


def test_a_worker_that_never_reads_its_replies_uses_no_memory_of_the_host(sandbox: Sandbox) -> None:
    with sandbox.session(limits=Limits(timeout=60, grace=0.1)) as session:
        session.run(RAW + "print('x' * (4 << 20))")
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        session.run(
            "args = json.dumps([[1, 'stdout', 0, 1 << 18], {}]).encode()\n"
            "for call in range(1000, 2200):\n"
            "    raw({'type': 'call', 'call': call, 'cell': 2, 'name': '_output_text',"
            "\n         'parts': []}, args)",
            timeout=2,
        )
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        assert grown < 64 << 10  # KiB; 1,200 replies are 300 MiB
        assert session.run("1 + 1").value == "2"


def test_answers_of_a_cell_are_counted(sandbox: Sandbox) -> None:
    with sandbox.session(answers="strict") as session:
        outcome = session.run("for i in range(1000): FINAL(i)")
    assert len(outcome.answers) == 64
    assert outcome.error is not None
    assert "64 answers" in outcome.error.message


def test_values_of_a_cell_s_answers_are_counted_together(sandbox: Sandbox) -> None:
    with sandbox.session(answers="strict") as session:
        outcome = session.run("for i in range(10): FINAL([i] * 200_000)")
        after = session.run("for i in range(60): FINAL('[,' * 100_000)")
    assert [answer.value[0] for answer in outcome.answers] == [0, 1, 2, 3, 4]
    assert outcome.error is not None
    assert "1,048,576 values" in outcome.error.message
    assert len(after.answers) == 60  # of one value each
