"""The parts of the shell: ends of cells, completion, text that reaches a terminal."""

from __future__ import annotations

import io
import json
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repl_env.cli import cells as cell_boundaries
from repl_env.cli.cells import cells, completions, is_whole
from repl_env.cli.line_editor import is_ready, next_indent
from repl_env.cli.repl import PipedLines
from repl_env.cli.shell import COMMANDS
from repl_env.cli.tables import RESET, TerminalText, harmless, json_line, one_line
from repl_sandbox import Limits, Sandbox
from tests.repl_env.environment_internals import set_completion_timeout

PAGE = (Path(__file__).parents[4] / "docs" / "cli.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x = 1\ny\n", ["x = 1\n", "y\n"]),
        ("def f():\n    a\n\n    b\nf()\n", ["def f():\n    a\n\n    b\n", "f()\n"]),
        ("for x in y:\n    x\n\n\nz", ["for x in y:\n    x\n\n\n", "z"]),
        ("if a: b\nelif c: d\nelse: e\nf\n", ["if a: b\nelif c: d\nelse: e\n", "f\n"]),
        (
            "try:\n    a\nexcept E:\n    b\nfinally:\n    c\n",
            ["try:\n    a\nexcept E:\n    b\nfinally:\n    c\n"],
        ),
        ("class A:\n    a\n\n\n    b\nc\n", ["class A:\n    a\n\n\n    b\n", "c\n"]),
        ("@d\n\n\n# c\n@e\ndef f(): pass\n", ["@d\n\n\n# c\n@e\ndef f(): pass\n"]),
        (
            "if a:\n  b\n\n\n# c\n\n\nelse:\n  d\ne",
            ["if a:\n  b\n\n\n# c\n\n\nelse:\n  d\n", "e"],
        ),
        ("def f():\n  a\n\f\n\fg\n", ["def f():\n  a\n\f\n", "\fg\n"]),
        ("d = {'#': \"[\",\n'b': 2}\ng\n", ["d = {'#': \"[\",\n'b': 2}\n", "g\n"]),
        ("x = 'a\\\n(b'\ng\n", ["x = 'a\\\n(b'\n", "g\n"]),
        ("x = [1,\ny = 2\nz\n", ["x = [1,\ny = 2\n", "z\n"]),
        (":put it's (1\nx\n", [":put it's (1\n", "x\n"]),
        ("f(\n1,\n\n\n2)\ng\n", ["f(\n1,\n\n\n2)\n", "g\n"]),
        ("'''\nx = 1\n\n\n'''\n", ["'''\nx = 1\n\n\n'''\n"]),
        ("@d\ndef f(): pass\nf\n", ["@d\ndef f(): pass\n", "f\n"]),
        ("# note\nx\n", ["# note\n", "x\n"]),
        ("x = \\\n1\n", ["x = \\\n1\n"]),
        (":vars\nx\n:undo 2", [":vars\n", "x\n", ":undo 2"]),
        ("await f()\nx\n", ["await f()\n", "x\n"]),
        ("1+\nx\n", ["1+\n", "x\n"]),
        ("f(\n", ["f(\n"]),
        ("\n\n  \n", []),
    ],
)
def test_a_pipe_is_cut_where_its_statements_end(text, expected):
    assert list(cells(io.StringIO(text, newline="\n"))) == expected


def test_a_complete_statement_is_given_before_the_next_line_is_read():
    asked: list[str] = []

    def lines():
        for line in ("x = [\n", "1]\n", "'''a\n", "b'''\n", "1 + \\\n", "2\n", "x = 3; x\n"):
            asked.append(line)
            yield line

    assert [(len(asked), cell) for cell in cells(lines())] == [
        (2, "x = [\n1]\n"),
        (4, "'''a\nb'''\n"),
        (6, "1 + \\\n2\n"),
        (7, "x = 3; x\n"),
    ]


def test_two_empty_lines_end_a_block_where_the_writer_pauses():
    lines = ["def f():\n", "    '''\n", "\n", "\n", "'''\n", "\n", "\n", "    x\n"]
    assert list(cells(lines, paused=lambda: True)) == ["".join(lines[:7]), "    x\n"]
    assert list(cells(lines, paused=lambda: False)) == ["".join(lines)]


@pytest.mark.parametrize(
    "text",
    [
        "x = '''\n" + "text of a line\n" * 50_000 + "'''\n",
        "x = [\n" + "1,\n" * 50_000 + "]\n",
        "class A:\n" + "    x = f(\n1\n)\n\n\n" * 10_000,
        "def f():\n    x\n" + "# c\n\n" * 50_000 + "    y\n",
    ],
    ids=["text", "list", "class", "comments"],
)
def test_long_statements_are_one_cell(text):
    assert list(cells([*text.splitlines(keepends=True), "y\n"])) == [text, "y\n"]


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"", []),
        (b"a\r\nb\rc", ["a\n", "b\n", "c"]),
        (b"a\x0c\x1c\xe2\x80\xa8b\n", ["a\f\x1c\u2028b\n"]),
        (b"\xef\xbb\xbfx = 1\n", ["x = 1\n"]),
        (b"\xef\xbb\xbf# coding: latin-1\n'\xc3\xa9'\n", ["# coding: latin-1\n", "'é'\n"]),
        (b"# -*- coding: latin-1 -*-\n'\xe9'\n", ["# -*- coding: latin-1 -*-\n", "'é'\n"]),
        (b"#!/bin/py\n# coding: cp1252\n'\x80'", ["#!/bin/py\n", "# coding: cp1252\n", "'€'"]),
        (b"# coding: hex\n'\xc3\xa9'\n", ["# coding: hex\n", "'é'\n"]),
        (b"# coding: nothing_like_it\n1\n", ["# coding: nothing_like_it\n", "1\n"]),
        (b"'\xff'\n", ["'\ufffd'\n"]),
    ],
)
def test_a_pipe_is_read_as_python_reads_source(data, lines):
    assert list(PipedLines(io.BytesIO(data))) == lines


@given(st.text(alphabet="ab:=()[]'\"\\ \n\t#@\x00", max_size=60))
def test_any_input_is_cut_into_cells_without_loss_except_empty_lines(text):
    lines = text.splitlines(keepends=True)
    together = "".join(cells(lines))

    assert together.split() == text.split()


@pytest.mark.parametrize("text", ["(" * 5000, "\x00", "x" * 100 + "\\", "0" * 5000])
def test_source_that_fails_to_parse_is_left_to_the_session(text):
    assert is_whole(text) in (True, False)


@pytest.mark.parametrize(
    ("text", "ready"),
    [
        ("x", True),
        ("f(1,", False),
        ("def f():", False),
        ("def f():\n    return 1", False),
        ("def f():\n    return 1\n    ", True),
        ("for x in y: print(x)", True),
        ("f(\n    1)", True),
        ("'''a", False),
        (":put", True),
        ("", True),
        ("x = = 1", True),
    ],
)
def test_enter_runs_a_complete_statement(text, ready):
    assert is_ready(text) is ready


@pytest.mark.parametrize(
    ("before", "indent"),
    [("if x:", 4), ("    if x:", 8), ("    y", 4), ("        return 1", 4), ("f(", 4), ("x", 0)],
)
def test_the_next_line_is_indented(before, indent):
    assert len(next_indent(before)) == indent


@pytest.fixture(scope="module")
def session():
    with Sandbox(limits=Limits(timeout=60)) as sandbox, sandbox.session() as session:
        session.run(
            "counted = []\n"
            "class A:\n"
            "    attribute = 1\n"
            "    _hidden = 2\n"
            "    def __dir__(self):\n"
            "        counted.append(1)\n"
            "        return ['attribute', '_hidden', 'not a name', 'x' * 1000, '\\x1b[2J']\n"
            "class Slow:\n"
            "    def __dir__(self):\n"
            "        while True: pass\n"
            "a = b = A()\n"
            "a.b = b\n"
            "slow = Slow()\n"
            "class Ends:\n"
            "    def __dir__(self):\n"
            "        import os; os._exit(1)\n"
            "ends = Ends()\n"
        )
        yield session


@pytest.mark.parametrize(
    ("before", "prefix", "names"),
    [
        ("coun", "coun", ["counted"]),
        ("x = a.", "", ["attribute"]),
        ("a.b.attr", "attr", ["attribute"]),
        ("print(a._", "_", ["_hidden"]),
        ("a.none", "none", []),
        ("unknown.x", "x", []),
        ("slow.x", "x", []),
        ("ends.x", "x", []),
        ("a.b().x", "", []),
        ("'text'.x", "", []),
        ("1.x", "", []),
        ("if.x", "x", []),
        ("", "", []),
    ],
)
def test_a_name_is_completed_from_the_session(session, monkeypatch, before, prefix, names):
    if "slow" not in before:  # which has no end
        set_completion_timeout(monkeypatch, 60.0)
    assert completions(session, before) == (prefix, names)


def test_keywords_and_builtins_are_names_too(session):
    assert {"while"} <= set(completions(session, "whi")[1])
    assert {"isinstance", "issubclass"} <= set(completions(session, "is")[1])


@pytest.mark.parametrize("text", ["a" * 500_000, "a." * 250_000, "1a" * 250_000])
def test_pasted_text_before_the_cursor_is_checked_once(session, text):
    assert completions(session, f"{text} + coun") == ("coun", ["counted"])
    assert completions(session, f"{text}!") == ("", [])


def test_completing_leaves_the_session_as_it_is(session):
    before = session.variables()
    completions(session, "a.attr")
    completions(session, "slow.x")

    assert session.get("counted") == []
    assert session.variables() == before


def test_only_colours_reach_the_terminal():
    text = "a\x1b[31mred\x1b[0m\t\r\n\x1b]52;c;x\x07\x1b[6n\x9b2J\x1bc\x00\x7f"

    assert harmless(text) == ("a\x1b[31mred\x1b[0m\t\r\n^[]52;c;x^G^[[6n\\x9b2J^[c^@^?" + RESET)


@given(st.lists(st.text(alphabet="\x1b[]0;1mJ\x07a\x9b\n", max_size=6), max_size=8))
def test_pieces_come_out_as_the_whole(pieces):
    made = TerminalText()
    fed = "".join(made.feed(piece) for piece in pieces) + made.finish()

    assert fed == harmless("".join(pieces))


def test_one_line_is_short_and_has_no_controls():
    assert one_line("a\n\x1b[2J  b\u202e", 50) == "a [2J b"
    assert one_line("x" * 100, 10) == "x" * 9 + "…"


def test_the_page_names_every_command_of_the_shell():
    assert [one.name for one in COMMANDS if f"`:{one.name}" not in PAGE] == []


# Unicode's property Bidi_Control: embeddings, overrides, isolates, and the three marks.
_TURNING = {"LRE", "RLE", "PDF", "LRO", "RLO", "LRI", "RLI", "FSI", "PDI"}
CONTROLS = ["\u061c", "\u200e", "\u200f"]
CONTROLS += [chr(c) for c in range(0x110000) if unicodedata.bidirectional(chr(c)) in _TURNING]


@pytest.mark.parametrize("control", CONTROLS, ids=ascii)
def test_the_reading_direction_is_shown(control):
    assert harmless(f"a{control}b") == f"a{ascii(control)[1:-1]}b"
    assert one_line(f"a{control}b", 50) == "a b"
    assert json.loads(json_line({"a": control})) == {"a": control}
    assert control not in json_line([control])


def test_json_of_one_line_keeps_letters_and_has_no_controls():
    text = json_line({"caf\xe9": "\x1b[2J\x9b\x7f\u2028\u05d0"})

    assert text == r'{"café": "\u001b[2J\u009b\u007f\u2028א"}'


# Beginnings and repeated lines whose end a reader could look for again with each line.
REPEATED = [
    ("", "@d\n"), ("# c\n", "    '''\n"), ("if x:\n", "    x = (\n    1)\n"), ("x = (\n", "x\n"),
    ("", "    x = 1\n"), ("    x = 1\n", "    y = (\n1)\n"), ("try:\n    x\n", "    y\n"),
    ("class A:\n", "    @d\n"), ("@d\n", "# c\n"), ("x = '''\n", "    '\n"), ("x = [\n", "    )\n"),
    ("@(\n", "    x\n"), ("if x:\n", "    \n"), ("", "x = (\n1)\n"),
    ("match x:\n", "    case 1:\n"),
    ("@d(\n", ")\n@d(\n"), ("", "if x:\n"), ("", "try:\n"), ("", "x\\\n"), ("# c\n", "    (\n)\n"),
]  # fmt: skip


@pytest.mark.parametrize(("begin", "line"), REPEATED)
def test_the_work_to_find_cells_grows_with_the_text(begin, line, monkeypatch):
    parsed = 0
    whole = cell_boundaries.is_whole

    def counted(text):
        nonlocal parsed
        parsed += len(text)
        return whole(text)

    monkeypatch.setattr(cell_boundaries, "is_whole", counted)
    text = begin + line * 500

    assert "".join(cells(text.splitlines(keepends=True))) == text
    assert parsed <= 3 * len(text)
