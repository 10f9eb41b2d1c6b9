"""Names, streams and signal handlers of a session beside those of a plain interpreter."""

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest

from repl_sandbox import Finished, Limits, Policy, Raised, Sandbox, Session, TimedOut
from repl_sandbox.worker.answers import HOOK, install

# Each line is an expression with the same value in a session and in a new interpreter.
SAME = [
    "sorted(vars(builtins))",
    "dir(builtins)",
    "[n for n in dir(builtins) if not n.isidentifier()]",
    "len(collections.namedtuple('N', dir(builtins), rename=True)(*dir(builtins)))",
    *(
        f"{expression.format(name)}"
        for name in ("stdin", "stdout", "stderr")
        for expression in (
            "sys.{0}.name, sys.{0}.mode",
            "type(sys.{0})",
            "repr(sys.{0})",
            "sys.{0}.buffer.name, sys.{0}.buffer.raw.name",
            "sys.{0}.buffer.mode, sys.{0}.buffer.raw.mode",
            "sys.{0}.encoding, sys.{0}.newlines, sys.{0}.line_buffering, sys.{0}.closed",
            "sys.{0}.isatty(), sys.{0}.fileno(), sys.{0}.buffer.fileno()",
            "sys.{0}.readable(), sys.{0}.writable()",
            "sys.{0} is sys.__{0}__",
            "sorted(vars(sys.{0}))",
        )
    ),
    "type(sys.stdin.buffer), sys.stdin.buffer.read1(3), sys.stdin.buffer.peek()",
    "logging.StreamHandler(), logging.lastResort, logging.StreamHandler(sys.stdout)",
    "[signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGPIPE, signal.SIGCHLD)]",
    "signal.getsignal(signal.SIGINT) is signal.default_int_handler",
    *(
        f"{expression.format(name)}"
        for name in ("signal.default_int_handler", "_signal.default_int_handler", "input")
        for expression in (
            "{0}, {0}.__name__, {0}.__qualname__, {0}.__module__, {0}.__self__",
            "inspect.isbuiltin({0}), inspect.isroutine({0}), callable({0}), type({0}).__name__",
            "inspect.signature({0}), inspect.getdoc({0}), pydoc.render_doc({0})",
            "type('Case', (), dict(call={0}))().call is {0}",
            "pickle.loads(pickle.dumps({0})) is {0}, copy.deepcopy({0}) is {0}",
        )
    ),
    "[n for m in (builtins, signal, os, io, sys, time, gc, socket) for n, v in vars(m).items()"
    " if isinstance(v, types.FunctionType) and n != '__interactivehook__']",
    "signal.pthread_sigmask(signal.SIG_BLOCK, []), signal.set_wakeup_fd(-1)",
    "sys.displayhook is sys.__displayhook__, sys.excepthook is sys.__excepthook__",
    "sys.getrecursionlimit(), sys.getswitchinterval(), gc.get_threshold(), gc.isenabled()",
    "gc.callbacks, gc.get_debug(), faulthandler.is_enabled(), warnings.filters",
    "threading.current_thread() is threading.main_thread(), len(threading.enumerate())",
    "sys.argv, __name__, __doc__, __package__, __spec__, '__file__' in globals()",
    "[getattr(builtins, n) for n in ('exit', 'quit', 'copyright', 'credits', 'license', 'help')]",
]
IMPORTS = """
import _signal, builtins, collections, copy, faulthandler, gc, inspect, io, logging, os, pickle
import pydoc, signal, socket, sys, threading, time, types, warnings
"""


@pytest.fixture
def sandbox(in_each_tier: Sandbox) -> Sandbox:
    return in_each_tier


def listing(lines: list[str]) -> str:
    return IMPORTS + "".join(f"print(ascii(repr(({line}))))\n" for line in lines)


@pytest.fixture(scope="module")
def plain() -> list[str]:
    done = subprocess.run(
        [sys.executable, "-E", "-X", "utf8", "-c", f"import sys\nsys.argv = ['']\n{listing(SAME)}"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


def test_a_session_looks_like_a_plain_interpreter(session: Session, plain: list[str]) -> None:
    outcome = session.run(listing(SAME))
    assert isinstance(outcome, Finished), outcome
    seen = outcome.stdout.splitlines()
    assert dict(zip(SAME, seen, strict=True)) == dict(zip(SAME, plain, strict=True))


def test_the_streams_look_alike_after_they_were_closed(session: Session) -> None:
    lines = [line for line in SAME if line.startswith("sys.std")]
    before = session.run(listing(lines)).stdout
    session.run("sys.stdout.detach(); sys.stderr.close(); sys.stdin.close()")
    assert session.run(listing(lines)).stdout == before


def test_the_errors_of_host_functions_are_a_name_of_the_session(session: Session) -> None:
    assert session.run("HostCallError.__name__, 'HostCallError' in globals()").value == (
        "('HostCallError', True)"
    )
    assert not session.variables()
    code = "open('own.py', 'w').write('from __main__ import HostCallError')\nimport own"
    assert session.run(f"{code}\nown.HostCallError is HostCallError").value == "True"
    assert session.run("del HostCallError\n'HostCallError' in dir()").value == "False"


@pytest.mark.parametrize("policy", [None, Policy(language="restricted")])
def test_printed_forms_leave_no_name_among_the_builtins(policy: Policy | None) -> None:
    answers = []
    with (
        Sandbox(policy=policy) as sandbox,
        sandbox.session(answers="compatible", on_answer=answers.append) as session,
    ):
        assert isinstance(session.run("n = 4\nprint(f'FINAL({n})')"), Finished)
        assert [answer.text for answer in answers] == ["4"]
        assert {note.name for note in session.variables()} <= {"n", "answer"}
        if policy is None:
            names = "import builtins\n[n for n in dir(builtins) if not n.isidentifier()]"
            assert session.run(names).value == "[]"
            assert session.run("'__form__' in vars(builtins)").value == "False"


def test_a_function_with_a_printed_form_can_be_sent_to_another_process() -> None:
    everything: dict[str, object] = {}
    install(lambda text, last: None, everything)
    assert pickle.loads(pickle.dumps(everything[HOOK]))("FINAL(1)", False) == "FINAL(1)"


# ── the handler of SIGINT ────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "code",
    [
        "signal.raise_signal(signal.SIGINT)",
        "os.kill(os.getpid(), signal.SIGINT); time.sleep(5)",
        "signal.default_int_handler(signal.SIGINT, None)",
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "signal.raise_signal(signal.SIGINT)",
        "class Program:\n    handler = signal.default_int_handler\n"
        "signal.signal(signal.SIGINT, Program().handler)\nsignal.raise_signal(signal.SIGINT)",
        "async def main():\n    signal.raise_signal(signal.SIGINT)\n    await asyncio.sleep(5)\n"
        "asyncio.run(main())",
    ],
)
def test_sigint_is_a_keyboard_interrupt(session: Session, code: str) -> None:
    outcome = session.run(f"import asyncio, os, signal, time\n{code}")
    assert isinstance(outcome, Raised), outcome
    assert outcome.error.type == "KeyboardInterrupt"


def test_a_task_of_asyncio_is_cancelled_by_sigint_as_elsewhere(session: Session) -> None:
    code = """
import asyncio, signal
async def main():
    signal.raise_signal(signal.SIGINT)
    try:
        await asyncio.sleep(5)
    except asyncio.CancelledError:
        return "cancelled"
asyncio.run(main())
"""
    assert session.run(code).value == "'cancelled'"


@pytest.mark.parametrize("line", ["while True: pass", "time.sleep(60)", "await asyncio.sleep(60)"])
def test_a_time_out_keeps_the_variables_of_a_cell_in_asyncio(sandbox: Sandbox, line: str) -> None:
    limits = Limits(timeout=0.5, grace=30)
    with sandbox.session(limits=limits) as session:
        outcome = session.run(
            f"import asyncio, time\nn = 1\nasync def main():\n    {line}\nasyncio.run(main())"
        )
        assert isinstance(outcome, TimedOut), outcome
        assert outcome.state == "kept"
        assert session.run("n").value == "1"
