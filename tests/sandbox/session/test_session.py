"""Cells, interrupts and handles of sessions, through `Session` alone."""

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

import pytest

from repl_sandbox import (
    Finished,
    Limits,
    Raised,
    Sandbox,
    SandboxError,
    Session,
    SessionBusy,
    SessionClosed,
)
from repl_sandbox.session.blocking import BlockingWait
from repl_sandbox.session.handle import SessionHandle
from repl_sandbox.session.io import SessionIO
from tests.internals import locks_of


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


def test_code_that_is_no_str_or_too_large_is_an_error_of_the_caller(session: Session) -> None:
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


def test_a_waiting_worker_wakes_only_for_its_messages() -> None:
    """The worker is not woken again when the host reads and the socket becomes writable."""
    code = "import resource; resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw"
    cells = 300
    with Sandbox(recovery="restart") as sandbox, sandbox.session() as session:
        before = int(session.run(code).value or "")
        for _ in range(cells):
            session.run("x = 1")
        waits = int(session.run(code).value or "") - before
    assert waits < 1.5 * cells


def test_repeated_interrupts_lose_nothing(session: Session) -> None:
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


def test_a_second_ctrl_c_during_an_interrupted_call_does_not_affect_the_next(
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
    """Raise Ctrl-C at the `count`-th signal check in the code of `Session`.

    The interpreter checks where a function begins, and after a call of a C function.
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
def test_a_session_is_free_again_after_ctrl_c_at_any_call(
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


def test_a_session_goes_on_after_a_request_for_a_withdrawn_file(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C during a `set`, whose file is closed before the session has requested it."""
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


def test_a_caller_without_free_descriptors_still_waits(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left() -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(select, "epoll", none_left)
    with sandbox.session() as session:
        outcome = session.run("import os; os.write(1, b'x' * (1 << 21)); 'done'")
    assert (len(outcome.stdout), outcome.value) == (1 << 21, "'done'")


def test_a_call_during_which_the_session_is_closed_raises(sandbox: Sandbox) -> None:
    def close_amid_a_cell(session: Session) -> None:
        code = "print(1, flush=True)\nwhile True: pass"
        with pytest.raises(SessionClosed, match="was closed amid this call"):
            session.run(code, on_output=lambda *_: session.close())

    with sandbox.session() as session:
        session.run("x = 1")
        close_amid_a_cell(session.branch())
        close_amid_a_cell(session)


def test_a_missing_resource_is_reported_without_an_empty_reason() -> None:
    with (
        Sandbox(limits=Limits(memory="128MiB")) as sandbox,
        sandbox.session() as session,
        pytest.raises(SandboxError, match=r"x: the session has no room for it: MemoryError$"),
    ):
        session.set("x", [[] for _ in range(2_000_000)])


# ── handles ───────────────────────────────────────────────────────────────────────────────────


def test_a_closed_session_says_so(sandbox: Sandbox) -> None:
    session = sandbox.session()
    session.close()
    session.close()
    with pytest.raises(SessionClosed):
        session.run("1")


def test_a_concurrent_call_is_an_error_for_the_second_caller(session: Session) -> None:
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
    # As if other threads, such as the watchdog's, held the locks now.
    locks = locks_of(sandbox)
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


def test_functions_of_cells_run_in_processes_of_pools(sandbox: Sandbox) -> None:
    code = (
        "import concurrent.futures, multiprocessing\n"
        "def double(n): return 2 * n\n"
        "with multiprocessing.Pool(2) as pool: doubled = pool.map(double, [1, 2])\n"
        "with concurrent.futures.ProcessPoolExecutor(2) as pool: doubled += pool.map(double, [3])\n"
        "doubled, multiprocessing.get_start_method()"
    )
    with sandbox.session() as session:
        assert session.run(code).value == "([2, 4, 6], 'fork')"


def test_code_may_choose_how_processes_are_started(sandbox: Sandbox) -> None:
    with sandbox.session() as session:
        chosen = "import multiprocessing as mp\nmp.set_start_method('spawn')\nmp.get_start_method()"
        assert session.run(chosen).value == "'spawn'"


def test_a_freed_block_is_allocated_again_without_page_faults(session: Session) -> None:
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


def test_a_closed_session_frees_its_output(sandbox: Sandbox) -> None:
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
