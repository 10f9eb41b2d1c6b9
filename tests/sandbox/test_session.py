"""Sessions as a caller sees them, through `Session` alone."""

from __future__ import annotations

import errno
import inspect
import itertools
import os
import pickle
import select
import signal
import sys
import threading
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

import psutil
import pytest

from repl_sandbox import (
    Finished,
    Killed,
    Limits,
    Raised,
    Sandbox,
    SandboxError,
    Session,
    SessionBusy,
    SessionClosed,
    TimedOut,
)
from repl_sandbox.session.drivers.blocking_wait import BlockingWait
from repl_sandbox.session.drivers.session_handle import SessionHandle
from repl_sandbox.session.io import SessionIO
from tests.sandbox.conftest import Clock
from tests.waiting import eventually


def test_a_cell_has_value_output_and_changes(session: Session) -> None:
    outcome = session.run("import sys\nx = 6\nprint('out'); print('err', file=sys.stderr)\nx * 7")

    assert isinstance(outcome, Finished)
    assert outcome.ok
    assert (outcome.value, outcome.stdout, outcome.stderr) == ("42", "out\n", "err\n")
    assert [(change.kind, change.name) for change in outcome.changes] == [
        ("new", "sys"),
        ("new", "x"),
    ]
    assert outcome.state == "kept"


def test_the_namespace_behaves_as_a_module(session: Session) -> None:
    session.run("def later():\n    return value")
    session.run("value = 5")
    assert session.run("later()").value == "5"
    session.run(
        "import pickle, dataclasses\n"
        "@dataclasses.dataclass\nclass Point:\n    x: int\n"
        "copy = pickle.loads(pickle.dumps(Point(3)))"
    )
    assert session.run("copy == Point(3), __name__").value == "(True, '__main__')"
    assert session.run("def f(n): return 1 if n < 2 else n * f(n - 1)\nf(5)").value == "120"


def test_an_error_keeps_output_and_state_and_shows_the_line(session: Session) -> None:
    outcome = session.run("y = 1\nprint('before')\ny / 0")

    assert isinstance(outcome, Raised)
    assert outcome.stdout == "before\n"
    assert outcome.error is not None
    assert (outcome.error.type, outcome.error.line) == ("ZeroDivisionError", 3)
    assert "y / 0" in outcome.error.traceback
    assert "repl_sandbox" not in outcome.error.traceback
    assert session.run("y").value == "1"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("x =", "invalid syntax"),
        ("x = 1\0", "NUL"),
        ("x = '\ud800'", "surrogate"),
        ("(" * 5000 + ")" * 5000, "parenthes"),
    ],
    ids=["syntax", "nul", "surrogate", "nesting"],
)
def test_source_that_is_no_python_is_a_syntax_error(
    session: Session, code: str, words: str
) -> None:
    outcome = session.run(code)

    assert isinstance(outcome, Raised)
    assert outcome.error is not None
    assert outcome.error.type == "SyntaxError"
    assert words in outcome.error.message
    assert session.run("1 + 1").value == "2"


def test_code_that_is_no_text_or_too_large_is_the_callers_mistake(session: Session) -> None:
    with pytest.raises(TypeError, match="code must be a str, not bytes"):
        session.run(b"1")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="104,857,600 bytes"):
        session.run("#" * (100 << 20))
    with pytest.raises(ValueError, match="timeout"):
        session.run("1", timeout=0)
    assert session.run("1 + 1").value == "2"


def test_exit_and_input_do_not_end_the_session(session: Session) -> None:
    session.run("kept = 1")
    for code, kind in (("exit()", "SystemExit"), ("input('?')", "EOFError")):
        outcome = session.run(code)
        assert isinstance(outcome, Raised)
        assert outcome.error is not None
        assert outcome.error.type == kind
    assert session.run("kept").value == "1"


def test_top_level_await(session: Session) -> None:
    outcome = session.run("import asyncio\nawait asyncio.sleep(0, 'slept')")
    assert outcome.value == "'slept'"


def test_output_of_c_code_and_children_comes_in_order(session: Session) -> None:
    outcome = session.run(
        "import os, subprocess, sys\n"
        "print('a', end='')\n"
        "os.write(1, b'b')\n"
        "subprocess.run(['/bin/echo', '-n', 'c'])\n"
        "os.system('printf d')\n"
        "print('e')"
    )
    assert outcome.stdout == "abcde\n"


def test_output_is_streamed_while_the_cell_runs(session: Session) -> None:
    """The callback's effect is needed for the cell to end, so it cannot have come afterwards."""
    seen: dict[str, str] = {"stdout": ""}

    def on_output(stream: str, text: str) -> None:
        seen[stream] += text
        if seen["stdout"] == "started\n":
            session.interrupt()

    outcome = session.run("print('started')\nwhile True: pass", on_output=on_output)

    assert seen == {"stdout": "started\n"}
    assert isinstance(outcome, Raised)
    assert outcome.error is not None
    assert outcome.error.type == "KeyboardInterrupt"


def test_a_waiting_worker_is_woken_by_what_it_waits_for_alone() -> None:
    """And not once more as the host reads its answer, which makes room to write."""
    code = "import resource; resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw"
    cells = 300
    with Sandbox(recovery="restart") as sandbox, sandbox.session() as session:
        before = int(session.run(code).value or "")
        for _ in range(cells):
            session.run("x = 1")
        waits = int(session.run(code).value or "") - before
    assert waits < 1.5 * cells


def test_interrupts_that_follow_one_another_cost_nothing(session: Session) -> None:
    session.run("import os, signal\nx = 1")
    striking = (
        "if os.fork() == 0:\n"
        "    for _ in range(2000): os.kill(os.getppid(), signal.SIGINT)\n"
        "    os._exit(0)\n"
        "while True: pass"
    )
    for _ in range(20):
        outcome = session.run(striking)
        assert (type(outcome), outcome.state) == (Raised, "kept")
    assert session.get("x") == 1


def test_on_output_is_told_of_its_own_cell_alone(session: Session) -> None:
    told: list[str] = []
    session.run("x = 1", on_output=lambda _, text: told.append(text))
    session.run("print('of the next')")
    assert told == []


def test_on_output_that_nobody_would_await_is_refused_before_anything_runs(
    session: Session,
) -> None:
    async def hear(stream: str, text: str) -> None: ...

    for wrong, name in ((hear, "coroutine function"), (3, "int")):
        with pytest.raises(TypeError, match=f"plain function, which is not awaited, and no {name}"):
            session.run("x = 1", on_output=wrong)  # type: ignore[arg-type]
    assert session.variables() == []


def test_on_output_that_raises_while_a_worker_is_replaced_costs_nothing(session: Session) -> None:
    session.run("import os, signal\nx = 1")
    core = session._core
    waited_for = core.io.descriptors

    def on_output(stream: str, text: str) -> None:
        if core.io.descriptors != waited_for:  # the worker is dead, and init has not said so yet
            raise ArithmeticError

    flood = (
        "x = 2\nfor _ in range(4):\n"
        "    if os.fork() == 0:\n        while True: os.write(1, b'x' * 1000)\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    for _ in range(20):
        waited_for = core.io.descriptors
        with suppress(ArithmeticError):
            session.run(flood, on_output=on_output)
        assert session.get("x") == 1


def test_another_ctrl_c_while_a_call_is_left_is_no_fault_of_the_next(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait, waits = BlockingWait.wait, itertools.count()

    def struck_twice(waiting: BlockingWait, io: SessionIO, seconds: float) -> list[tuple[int, int]]:
        if next(waits) < 2:
            raise KeyboardInterrupt
        return wait(waiting, io, seconds)

    with monkeypatch.context() as patched:
        patched.setattr(BlockingWait, "wait", struck_twice)
        with pytest.raises(KeyboardInterrupt):
            session.run("while True: pass")
    assert session.run("6 * 7").value == "42"


class Struck:
    """Ctrl-C the `count`-th time that the interpreter looks for signals in the code of `Session`.

    It does where a function begins, and after a call of one that is written in C.
    """

    files = (
        inspect.getfile(Session),
        inspect.getfile(SessionHandle),
        inspect.getfile(BlockingWait),
    )

    def __init__(self, count: int) -> None:
        self.left = count

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        if event in ("call", "c_return") and frame.f_code.co_filename in self.files:
            self.left -= 1
            if not self.left:
                sys.setprofile(None)
                raise KeyboardInterrupt


@pytest.mark.parametrize(
    "use",
    [
        lambda s: s.run("6"),
        lambda s: s.get("kept"),
        lambda s: s.set("other", 1),
        lambda s: s.set("other", "x" * 100_000),
    ],
    ids=["run", "get", "set", "set in a file"],
)
def test_a_session_is_free_again_wherever_ctrl_c_has_struck(
    session: Session, use: Callable[[Session], object]
) -> None:
    session.run("kept = 1")
    for count in itertools.count(1):
        struck = Struck(count)
        with suppress(KeyboardInterrupt):
            sys.setprofile(struck)
            try:
                use(session)
            finally:
                sys.setprofile(None)
        assert session.get("kept") == 1, count
        if struck.left:
            break  # it came to its end before


def test_a_session_goes_on_when_it_asks_for_a_file_that_its_caller_has_taken_back(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C amid a `set`, whose file is closed before the session has asked for it."""
    wait = BlockingWait.wait

    def struck(waiting: BlockingWait, io: SessionIO, seconds: float) -> list[tuple[int, int]]:
        monkeypatch.setattr(BlockingWait, "wait", wait)
        io.withdraw()
        raise KeyboardInterrupt

    session.run("kept = 1")
    monkeypatch.setattr(BlockingWait, "wait", struck)
    with pytest.raises(KeyboardInterrupt):
        session.set("other", "x" * 100_000)
    outcome = session.run("kept, 'other' in globals()")
    assert (outcome.value, outcome.state) == ("(1, False)", "kept")


def test_a_caller_who_may_open_nothing_more_waits_all_the_same(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left() -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(select, "epoll", none_left)
    with sandbox.session() as session:
        outcome = session.run("import os; os.write(1, b'x' * (1 << 21)); 'done'")
    assert (len(outcome.stdout), outcome.value) == (1 << 21, "'done'")


def test_an_exception_of_the_callback_reaches_the_caller_and_the_session_goes_on(
    session: Session,
) -> None:
    def on_output(stream: str, text: str) -> None:
        raise LookupError("mine")

    session.run("kept = 1")
    with pytest.raises(LookupError, match="mine"):
        session.run("print('x')\nwhile True: pass", on_output=on_output)
    assert session.run("kept").value == "1"


# ── time ──────────────────────────────────────────────────────────────────────────────────────


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
def test_what_no_interrupt_stops_is_killed_with_its_output_kept(
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


def test_an_interrupt_does_not_strike_the_next_cell(session: Session) -> None:
    for _ in range(20):
        assert isinstance(session.run("while True: pass", timeout=0.01), TimedOut)
        assert session.run("sum(range(1000))").value == "499500"


def test_files_survive_the_restart_of_a_session(session: Session) -> None:
    session.run("open('note', 'w').write('kept')")
    assert isinstance(session.run("import os; os._exit(1)"), Killed)
    assert session.run("open('note').read()").value == "'kept'"


# ── death ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import os; print('so far'); os._exit(0)", "exit"),
        ("import ctypes; print('so far'); ctypes.string_at(0)", "signal"),
        ("import os, signal; print('so far'); os.kill(os.getpid(), signal.SIGKILL)", "signal"),
    ],
    ids=["exit", "segmentation fault", "kill"],
)
def test_a_cell_that_ends_its_process_is_killed_and_the_session_goes_on(
    session: Session, code: str, reason: str
) -> None:
    outcome = session.run(code)

    assert isinstance(outcome, Killed)
    assert (outcome.reason, outcome.state, outcome.stdout) == (reason, "rolled_back", "so far\n")
    assert session.run("1 + 1").value == "2"


def test_a_session_that_died_between_cells_says_that_it_was_brought_back(session: Session) -> None:
    wait = "def end():\n    while not os.path.exists('end'): time.sleep(0.01)\n    os._exit(0)"
    session.run(f"x = 1\nimport os, threading, time\n{wait}\nthreading.Thread(target=end).start()")
    session.get("x")  # answered when there is a copy of the worker
    worker = psutil.Process(session._core.links.worker_pid)
    session.files.put("end", b"")
    assert not psutil.wait_procs([worker], timeout=60)[1]
    outcome = session.run("x")

    assert (outcome.value, outcome.state) == ("1", "rolled_back")


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
def test_a_forked_child_ends_as_a_program_does(
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
        # A child that nobody waits for, and whose parent is gone.
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


# ── output ────────────────────────────────────────────────────────────────────────────────────


def test_output_over_the_limit_keeps_head_and_tail_and_counts_the_rest(sandbox: Sandbox) -> None:
    with sandbox.session(limits=Limits(output="1MiB")) as session:
        outcome = session.run(
            "print('first')\nfor _ in range(300): print('x' * 9999)\nprint('last')"
        )

    assert outcome.stdout.startswith("first\nxxx")
    assert outcome.stdout.endswith("xxx\nlast\n")
    assert "bytes of output dropped" in outcome.stdout
    assert len(outcome.stdout) < (1 << 20) + 100


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_a_limit_of_a_few_bytes_keeps_a_few_bytes(sandbox: Sandbox, limit: int) -> None:
    with sandbox.session(limits=Limits(output=limit)) as session:
        outcome = session.run("print(12345)")

    assert outcome.stdout.startswith("1")
    assert "bytes of output dropped" in outcome.stdout


def test_earlier_output_can_be_read_again_page_by_page(session: Session) -> None:
    session.run("import sys\nfor i in range(10_000): print(i)\nprint('oops', file=sys.stderr)")
    full = "".join(f"{i}\n" for i in range(10_000))

    assert (
        session.run("len(_out[1]), _out[1][:4], _out[-1].page(1, 4), _out[1].stderr[:]").value
        == (repr((len(full), full[:4], "", "oops\n")))
        or session.run("str(_out[1]) == ''.join(f'{i}\\n' for i in range(10_000))").value == "True"
    )
    assert session.run("_out[1][-5:], '9999' in _out[1]").value == "('9999\\n', True)"
    assert isinstance(session.run("_out[99]"), Raised)


# ── values ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "value",
    [
        "text",
        "é\U0001f600" * 100_000,
        b"\0\xff",
        b"b" * 200_000,
        {"a": [1, None, 2.5, "x"]},
        [],
        "",
        7,
    ],
    ids=["str", "long str", "bytes", "long bytes", "json", "empty list", "empty", "int"],
)
def test_a_value_arrives_as_it_was(session: Session, value: object) -> None:
    session.set("value", value)  # type: ignore[arg-type]

    if isinstance(value, bytes):
        assert session.run("type(value), len(value), value[-1:]").value == repr(
            (bytes, len(value), value[-1:])
        )
    else:
        assert session.get("value") == value


@pytest.mark.parametrize(
    ("value", "keys"),
    [
        ({1: "a", "1": "b"}, "1 and '1'"),
        ({"true": 1, True: 2}, "'true' and True"),
        ([{"a": ({None: 1, "null": 2},)}], "None and 'null'"),
        ({"b": {"1.5": 1, 1.5: 2}, "a": {}}, "'1.5' and 1.5"),
    ],
)
def test_keys_that_json_makes_one_are_refused_by_name(
    session: Session, value: object, keys: str
) -> None:
    session.set("value", 0)
    with pytest.raises(ValueError, match=f"value must be .* keys {keys} are one key"):
        session.set("value", value)  # type: ignore[arg-type]
    assert session.get("value") == 0


def test_a_call_amid_which_the_session_is_closed_says_so(sandbox: Sandbox) -> None:
    def close_amid_a_cell(session: Session) -> None:
        code = "print(1, flush=True)\nwhile True: pass"
        with pytest.raises(SessionClosed, match="was closed amid this call"):
            session.run(code, on_output=lambda *_: session.close())

    with sandbox.session() as session:
        session.run("x = 1")
        close_amid_a_cell(session.branch())
        close_amid_a_cell(session)


def test_what_a_session_has_no_room_for_is_told_without_an_empty_reason() -> None:
    with (
        Sandbox(limits=Limits(memory="128MiB")) as sandbox,
        sandbox.session() as session,
        pytest.raises(SandboxError, match=r"x: the session has no room for it: MemoryError$"),
    ):
        session.set("x", [[] for _ in range(2_000_000)])


def test_two_keys_that_json_makes_one_cross_in_no_direction(sandbox: Sandbox) -> None:
    told: list[object] = []
    host = {"give": lambda: {"a": [{1: "x", "1": "y"}]}, "take": told.append}
    with sandbox.session(host=host, answers="strict") as session:
        session.run("pair = {'a': [{1: 'x', '1': 'y'}]}")
        with pytest.raises(TypeError, match="pair: its keys 1 and '1' are one key in JSON"):
            session.get("pair")
        for code, error in (("take(pair)", "ValueError: take"), ("give()", "ValueError: give")):
            outcome = session.run(code)
            assert isinstance(outcome, Raised)
            assert error in outcome.error.traceback
            assert "its keys 1 and '1' are one key in JSON" in outcome.error.traceback
        outcome = session.run("FINAL(pair)")
        assert [(each.text, each.value) for each in outcome.answers] == [
            ("{'a': [{1: 'x', '1': 'y'}]}", None)
        ]
    assert told == []


def test_a_value_that_cannot_be_read_costs_the_session_nothing(sandbox: Sandbox) -> None:
    with sandbox.session(limits=Limits(memory="256MiB")) as session:
        session.run("class Odd(dict):\n    def items(self): raise LookupError('not now')")
        session.run("odd, wide = Odd(a=1), 'x' * (100 << 20)")
        session.run("import threading\nstop = threading.Event()")
        session.run("waiting = threading.Thread(target=stop.wait)\nwaiting.start()")
        with pytest.raises(TypeError, match="odd: LookupError: not now"):
            session.get("odd")
        with pytest.raises(ValueError, match="wide: "):
            session.get("wide")
        assert session.run("waiting.is_alive()").value == "True"
        session.run("stop.set()")


@pytest.mark.parametrize("key", [1, None, True, 1.5, (1, 2), b"b"])
def test_keys_that_are_no_texts_are_refused_in_every_direction(
    session: Session, key: object
) -> None:
    kind = type(key).__name__
    with pytest.raises(TypeError, match=f"value must be .* key .* {kind}; JSON has texts alone"):
        session.set("value", [{"a": {key: 1}}])  # type: ignore[dict-item]
    session.run(f"value = ({{'a': {{{key!r}: 1}}}},)")
    with pytest.raises(TypeError, match=f"value: .* key .* {kind}; JSON has texts alone"):
        session.get("value")


def test_values_that_cannot_cross_are_refused_by_name(session: Session) -> None:
    with pytest.raises(TypeError, match="value must be str, bytes or JSON"):
        session.set("value", {1, 2j})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="'not a name' is not a name for a variable"):
        session.set("not a name", 1)
    with pytest.raises(ValueError, match="'class' is a keyword"):
        session.set("class", 1)
    with pytest.raises(ValueError, match="is read as 'fi' in code"):
        session.set("\N{LATIN SMALL LIGATURE FI}", 1)
    with pytest.raises(KeyError, match="missing"):
        session.get("missing")
    session.run("f = open('/dev/null')")
    with pytest.raises(TypeError, match="f: "):
        session.get("f")
    session.run("many = [0] * 300_000")
    with pytest.raises(ValueError, match=r"many: .*262,144 values"):
        session.get("many", as_answer=True)
    assert len(session.get("many")) == 300_000  # type: ignore[arg-type]


def test_variables_are_listed_without_what_is_ours(sandbox: Sandbox) -> None:
    with sandbox.session(host={"tool": print}, answers="strict") as session:
        session.run("numbers = [1, 2, 3]\n_private = 1\n5")
        listed = {
            variable.name: (variable.type, variable.preview) for variable in session.variables()
        }
    assert listed == {"numbers": ("list", "[1, 2, 3]"), "_private": ("int", "1")}


def _need_numpy(sandbox: Sandbox) -> None:
    """Of a session: in some tiers it sees less than this process."""
    with sandbox.session() as session:
        if not session.run("import numpy").ok:
            pytest.skip("sessions have no numpy")


@pytest.mark.parametrize(
    "code",
    [
        "import numpy",
        "import numpy.random",
        "from numpy.random import rand\nimport numpy",
        "import importlib.util, numpy.linalg\nimportlib.util.find_spec('numpy.random')",
        "import threading\nt = threading.Thread(target=lambda: __import__('numpy'))\nt.start()\n"
        "t.join()\nimport numpy",
    ],
)
def test_a_seed_holds_for_a_numpy_that_a_cell_imports(sandbox: Sandbox, code: str) -> None:
    _need_numpy(sandbox)

    def drawn(seed: int | None) -> str | None:
        with sandbox.session(seed=seed) as session:
            assert session.run("import sys\n'numpy' in sys.modules").value == "False"
            return session.run(f"{code}\nnumpy.random.rand()").value

    assert drawn(7) == drawn(7) != drawn(8)
    assert drawn(None) != drawn(None)
    with Sandbox(preload=["numpy"]) as loaded, loaded.session(seed=7) as session:
        assert session.run("import numpy\nnumpy.random.rand()").value == drawn(7)


def test_a_numpy_that_was_seeded_is_an_ordinary_one(sandbox: Sandbox) -> None:
    _need_numpy(sandbox)
    code = """
import inspect, sys, numpy.random
print(len(inspect.getsource(numpy.random)) > 100, type(numpy.random.__loader__).__name__)
print([type(each).__name__ for each in sys.meta_path if not isinstance(each, type)])
import importlib
before = numpy.random.rand()
importlib.reload(numpy.random)
print(numpy.random.rand() != before, vars(numpy.random.__loader__).keys())
"""
    with sandbox.session(seed=7) as seeded, sandbox.session() as plain:
        assert seeded.run(code).stdout == plain.run(code).stdout
        with sandbox.session(seed=1) as session, session.branch(seed=2) as branch:
            assert branch.run("import numpy\nnumpy.random.rand()").value == "0.43599490214200376"


def test_a_seed_makes_random_numbers_repeat(sandbox: Sandbox) -> None:
    drawn = []
    for seed in (1, 1, 2, None, None):
        with sandbox.session(seed=seed) as session:
            drawn.append(session.run("import random; random.random()").value)
    assert drawn[0] == drawn[1]
    assert len(set(drawn)) == 4


def test_sessions_of_a_template_that_holds_random_draw_their_own_numbers() -> None:
    with Sandbox(preload=["random"]) as sandbox:
        drawn = []
        for _ in range(3):
            with sandbox.session() as session:
                drawn.append(session.run("import random; random.random()").value)
    assert len(set(drawn)) == 3


# ── handles ───────────────────────────────────────────────────────────────────────────────────


def test_a_closed_session_says_so(sandbox: Sandbox) -> None:
    session = sandbox.session()
    session.close()
    session.close()
    with pytest.raises(SessionClosed):
        session.run("1")


def test_two_callers_at_once_is_an_error_for_the_second(session: Session) -> None:
    started = threading.Event()
    outcomes: list[object] = []

    def run() -> None:
        code = "print('go')\nwhile True: pass"
        outcomes.append(session.run(code, on_output=lambda *_: started.set()))

    thread = threading.Thread(target=run)
    thread.start()
    assert started.wait(60)
    with pytest.raises(SessionBusy):
        session.run("1")
    session.interrupt()
    thread.join(60)
    assert isinstance(outcomes[0], Raised)


def test_closing_ends_a_call_in_another_thread(sandbox: Sandbox) -> None:
    session = sandbox.session()
    started = threading.Event()
    errors: list[BaseException] = []

    def run() -> None:
        try:
            session.run("print('go')\nwhile True: pass", on_output=lambda *_: started.set())
        except SandboxError as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    assert started.wait(60)
    session.close()
    thread.join(60)
    assert isinstance(errors[0], SessionClosed)


def test_handles_cannot_be_pickled(sandbox: Sandbox, session: Session) -> None:
    for handle in (sandbox, session):
        with pytest.raises(TypeError, match="cannot be pickled"):
            pickle.dumps(handle)


# Libraries that other tests loaded have threads; from 3.12 on that is a warning. The child needs
# none of them.
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_handles_are_dead_in_a_forked_process(sandbox: Sandbox, session: Session) -> None:
    session.run("x = 1")
    # As where other threads, such as the watchdog's, hold them just now.
    locks = sandbox._lock, sandbox._lifecycle.watchdog._lock
    for lock in locks:
        lock.acquire()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            signal.alarm(60)
            session.run("x")
        except SessionClosed:
            session.close()
            sandbox.close()
            code = 0
        finally:
            os._exit(code)
    for lock in locks:
        lock.release()
    assert os.waitpid(pid, 0)[1] == 0
    assert session.run("x").value == "1"


@pytest.mark.parametrize("tier", ["jailed", "confined"])
def test_a_value_of_more_than_half_of_the_memory_limit_can_be_set(
    tier: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it is copied the session maps it twice; only its own copy counts.

    In a session without waiting copies: the memory of one that is being ended is nobody's for a
    while, which is why a watchdog does not believe what it has seen once.
    """
    python = None if tier == "jailed" else request.getfixturevalue("open_python")
    # Look at sessions without a cell 100 times a second and not twice.
    monkeypatch.setattr("repl_sandbox.limits.watchdog._IDLE_PERIODS", 1)
    monkeypatch.setattr("repl_sandbox.limits.watchdog._PERIOD", 0.01)
    limits = Limits(timeout=60, memory="200MiB")
    with (
        Sandbox(isolation=tier, python=python, limits=limits, recovery="restart") as sandbox,
        sandbox.session() as session,
    ):
        for _ in range(3):
            session.set("value", b"x" * (150 << 20))
            session.run("del value")
        assert session.run("1 + 1").state == "kept"


@pytest.mark.parametrize(
    "cell",
    [
        "sys.stdout.close()",
        "sys.stdout.detach()",
        "sys.stdout.buffer.close()",
        "del sys.stdout",
        "sys.stdout = None",
        "sys.stdout = object()",
        "sys.stdout = io.StringIO(); sys.stdout.close()",
        "sys.stdout.close(); sys.__stdout__.close()",
    ],
)
def test_a_stream_that_a_cell_takes_away_is_there_again_in_the_next(
    sandbox: Sandbox, cell: str
) -> None:
    with sandbox.session() as session:
        session.run("import io, sys\nkept = 1")
        assert session.run(cell).state == "kept"
        assert session.run("print(kept)").stdout == "1\n"


@pytest.mark.parametrize("name", ["stdout", "stderr"])
@pytest.mark.parametrize(
    "change",
    [
        "{}.reconfigure(encoding='utf-8')",
        "{}.reconfigure(errors='replace', line_buffering=True)",
        "{} = io.TextIOWrapper({}.buffer, encoding='utf-8')",
        "{} = codecs.getwriter('utf-8')({}.buffer)",
    ],
)
def test_what_programs_do_for_their_encoding_works(
    sandbox: Sandbox, name: str, change: str
) -> None:
    with sandbox.session() as session:
        session.run("import codecs, io, sys")
        outcome = session.run(change.replace("{}", f"sys.{name}"))
        assert outcome.ok, outcome.error
        for text in ("é", "€"):
            outcome = session.run(f"print({text!r}, file=sys.{name})")
            assert getattr(outcome, name) == f"{text}\n"
        assert session.run(f"sys.{name}.seekable()").value == "False"


@pytest.mark.parametrize("cell", ["exit()", "sys.stdin.close()", "sys.__stdin__.close()"])
def test_standard_input_that_a_cell_closes_is_there_again_in_the_next(
    sandbox: Sandbox, cell: str
) -> None:
    """exit() closes it, and help() looks at it."""
    with sandbox.session() as session:
        session.run("import sys")
        session.run(cell)

        assert session.run("help(len)").ok
        assert session.run("sys.stdin.read()").value == "''"


def test_standard_input_of_the_users_stays_in_place(sandbox: Sandbox) -> None:
    with sandbox.session() as session:
        session.run("import io, sys\nsys.__stdin__.close()\nsys.stdin = io.StringIO('mine')")

        assert session.run("sys.stdin.read()").value == "'mine'"
        assert session.run("sys.__stdin__.read()").value == "''"


def test_what_c_code_writes_is_in_order_with_what_python_writes(sandbox: Sandbox) -> None:
    with sandbox.session() as session:
        outcome = session.run(
            "import ctypes\nlibc = ctypes.CDLL(None)\n"
            "print('one')\nlibc.printf(b'two\\n')\nprint('three')\nlibc.puts(b'four')\nNone"
        )
        assert outcome.stdout == "one\ntwo\nthree\nfour\n"


def test_functions_of_cells_run_in_processes_of_pools() -> None:
    code = (
        "import concurrent.futures, multiprocessing\n"
        "def double(n): return 2 * n\n"
        "with multiprocessing.Pool(2) as pool: doubled = pool.map(double, [1, 2])\n"
        "with concurrent.futures.ProcessPoolExecutor(2) as pool: doubled += pool.map(double, [3])\n"
        "doubled, multiprocessing.get_start_method()"
    )
    # The other tiers have no /dev/shm for what pools lock.
    with Sandbox(isolation="jailed") as sandbox, sandbox.session() as session:
        assert session.run(code).value == "([2, 4, 6], 'fork')"


def test_code_may_choose_how_processes_are_started(sandbox: Sandbox) -> None:
    with sandbox.session() as session:
        chosen = "import multiprocessing as mp\nmp.set_start_method('spawn')\nmp.get_start_method()"
        assert session.run(chosen).value == "'spawn'"


def test_a_block_that_a_cell_frees_is_had_again_without_page_faults(session: Session) -> None:
    result = session.run(
        "import resource\n"
        "def faults(): return resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n"
        "def blocks(): return b'x' * 1_000_000 + b'y'\n"
        "blocks()\n"
        "before = faults()\n"
        "for _ in range(10): blocks()\n"
        "faults() - before"
    )
    # Two blocks of 245 pages, ten times.
    assert int(result.value) < 490


def test_a_closed_session_holds_nothing_of_what_it_wrote(sandbox: Sandbox) -> None:
    tracemalloc.start()
    try:
        closed = []
        for _ in range(3):
            with sandbox.session() as session:
                assert len(session.run("print('x' * 5_000_000)").stdout) > 5_000_000
                closed.append(session)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert held < 5_000_000
