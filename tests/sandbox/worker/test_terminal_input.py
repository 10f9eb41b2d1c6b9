"""`input` and debuggers, in a session without a terminal."""

from __future__ import annotations

import pytest

from repl_sandbox import Finished, Raised, Session

BEGIN = "import io, sys\nfrom unittest.mock import patch\nopen('in.txt', 'w').write('3\\n4 5\\n')"


@pytest.mark.parametrize(
    ("cell", "shown"),
    [
        ("sys.stdin = io.StringIO('3\\n1 2 3\\n')\nint(input())", "3"),
        ("sys.stdin = open('in.txt')\ninput(), input()", "('3', '4 5')"),
        ("with patch('sys.stdin', io.StringIO('6')): x = input()\nx", "'6'"),
        ("with patch('builtins.input', return_value='7'): x = input()\nx", "'7'"),
        ("sys.stdin = io.StringIO('8')\nexec('x = input()')\nx", "'8'"),
        ("sys.stdin = io.StringIO('a\\nb')\n[line.strip() for line in sys.stdin]", "['a', 'b']"),
        ("import os\nos.dup2(os.open('in.txt', os.O_RDONLY), 0)\ninput()", "'3'"),
        ("import inspect\nstr(inspect.signature(input))", "\"(prompt='', /)\""),
        ("sys.stdin = io.StringIO('p 40 + 2\\nc\\n')\nbreakpoint()\n1", "1"),
    ],
)
def test_input_reads_from_a_replaced_standard_input(
    session: Session, cell: str, shown: str
) -> None:
    session.run(BEGIN)
    outcome = session.run(cell)
    assert isinstance(outcome, Finished), outcome
    assert outcome.value == shown


def test_a_prompt_is_printed(session: Session) -> None:
    session.run(BEGIN)
    assert (
        session.run("sys.stdin = io.StringIO('1')\nx = input('how many? ')").stdout == "how many? "
    )


def test_replaced_input_stays_until_it_is_read(session: Session) -> None:
    session.run(BEGIN)
    session.run("sys.stdin = io.StringIO('1\\n2\\n')")
    assert session.run("input() + input()").value == "'12'"
    end = session.run("input()")
    assert isinstance(end, Raised)
    assert (end.error.type, end.error.message) == ("EOFError", "EOF when reading a line")


@pytest.mark.parametrize(
    ("cell", "kind", "words"),
    [
        ("input()", "EOFError", "this session has no terminal"),
        ("breakpoint()", "RuntimeError", "print() what is to be seen"),
        (
            "def f():\n    import pdb\n    pdb.set_trace()\n    return 1\nf()",
            "RuntimeError",
            "print()",
        ),
        ("import pdb\npdb.run('1')", "RuntimeError", "this session has none"),
        (
            "import pdb\ntry:\n    1 / 0\nexcept ZeroDivisionError as e:\n"
            "    pdb.post_mortem(e.__traceback__)",
            "RuntimeError",
            "this session has none",
        ),
    ],
)
def test_without_a_terminal_the_error_says_so(
    session: Session, cell: str, kind: str, words: str
) -> None:
    outcome = session.run(cell)
    assert isinstance(outcome, Raised)
    assert outcome.error.type == kind
    assert words in outcome.error.message
    assert "repl_sandbox" not in outcome.error.traceback
    assert session.run("1 + 1").value == "2"
