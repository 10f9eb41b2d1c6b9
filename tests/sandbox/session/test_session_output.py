"""The output of cells: order, callbacks, limits, and standard streams that code replaces."""

from __future__ import annotations

from contextlib import suppress

import pytest

from repl_sandbox import Limits, Raised, Sandbox, Session
from tests.internals import session_core


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


def test_on_output_receives_the_output_of_its_own_cell_alone(session: Session) -> None:
    told: list[str] = []
    session.run("x = 1", on_output=lambda _, text: told.append(text))
    session.run("print('of the next')")
    assert told == []


def test_an_asynchronous_on_output_is_refused_before_anything_runs(
    session: Session,
) -> None:
    async def hear(stream: str, text: str) -> None: ...

    for wrong, name in ((hear, "coroutine function"), (3, "int")):
        with pytest.raises(TypeError, match=f"plain function, which is not awaited, not a {name}"):
            session.run("x = 1", on_output=wrong)  # type: ignore[arg-type]
    assert session.variables() == []


def test_on_output_that_raises_while_a_worker_is_replaced_has_no_effect(session: Session) -> None:
    session.run("import os, signal\nx = 1")
    core = session_core(session)
    waited_for = core.io.descriptors

    def on_output(stream: str, text: str) -> None:
        if (
            core.io.descriptors != waited_for
        ):  # the worker is dead, and init has not reported it yet
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


def test_an_exception_of_the_callback_reaches_the_caller_and_the_session_goes_on(
    session: Session,
) -> None:
    def on_output(stream: str, text: str) -> None:
        raise LookupError("mine")

    session.run("kept = 1")
    with pytest.raises(LookupError, match="mine"):
        session.run("print('x')\nwhile True: pass", on_output=on_output)
    assert session.run("kept").value == "1"


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
def test_a_limit_of_a_few_bytes_is_exact(sandbox: Sandbox, limit: int) -> None:
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
def test_a_stream_removed_by_a_cell_is_back_in_the_next(sandbox: Sandbox, cell: str) -> None:
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
def test_common_ways_to_change_the_encoding_work(sandbox: Sandbox, name: str, change: str) -> None:
    with sandbox.session() as session:
        session.run("import codecs, io, sys")
        outcome = session.run(change.replace("{}", f"sys.{name}"))
        assert outcome.ok, outcome.error
        for text in ("é", "€"):
            outcome = session.run(f"print({text!r}, file=sys.{name})")
            assert getattr(outcome, name) == f"{text}\n"
        assert session.run(f"sys.{name}.seekable()").value == "False"


@pytest.mark.parametrize("cell", ["exit()", "sys.stdin.close()", "sys.__stdin__.close()"])
def test_a_closed_standard_input_is_back_in_the_next_cell(sandbox: Sandbox, cell: str) -> None:
    """exit() closes it, and help() looks at it."""
    with sandbox.session() as session:
        session.run("import sys")
        session.run(cell)

        assert session.run("help(len)").ok
        assert session.run("sys.stdin.read()").value == "''"


def test_a_standard_input_of_the_code_stays_in_place(sandbox: Sandbox) -> None:
    with sandbox.session() as session:
        session.run("import io, sys\nsys.__stdin__.close()\nsys.stdin = io.StringIO('mine')")

        assert session.run("sys.stdin.read()").value == "'mine'"
        assert session.run("sys.__stdin__.read()").value == "''"


def test_output_of_c_code_and_of_python_is_in_order(sandbox: Sandbox) -> None:
    with sandbox.session() as session:
        outcome = session.run(
            "import ctypes\nlibc = ctypes.CDLL(None)\n"
            "print('one')\nlibc.printf(b'two\\n')\nprint('three')\nlibc.puts(b'four')\nNone"
        )
        assert outcome.stdout == "one\ntwo\nthree\nfour\n"
