"""Errors as bounded text: the user's frames only, whatever code of the exception does."""

from __future__ import annotations

import builtins
import linecache
import sys

import pytest

from repl_sandbox.types import ErrorInfo
from repl_sandbox.worker.tracebacks import describe
from tests.internals import break_descriptions

TOTAL_LIMIT = 16 << 10


# ── layout ───────────────────────────────────────────────────────────────────────────────────────


def test_a_traceback_reads_like_python_s_own(error):
    found = error("def f(x):\n    return 1 / x", "y = 1\nf(\n    0)")

    assert found == ErrorInfo(
        "ZeroDivisionError",
        "division by zero",
        "Traceback (most recent call last):\n"
        '  File "<cell 2>", line 2, in <module>\n'
        + CALL_OVER_TWO_LINES
        + '  File "<cell 1>", line 2, in f\n'
        "    return 1 / x\n"
        "           ~~^~~\n"
        "ZeroDivisionError: division by zero\n",
        2,
    )


# Python 3.13 marks all lines of an expression.
CALL_OVER_TWO_LINES = (
    "    f(\n    ~^\n        0)\n        ^^\n" if sys.version_info >= (3, 13) else "    f(\n"
)


def test_a_syntax_error_points_at_its_place(error):
    found = error("x = 1\ny = = 2")

    assert found.type == "SyntaxError"
    assert found.message == "invalid syntax"
    assert found.line == 2
    assert found.traceback == (
        '  File "<cell 1>", line 2\n    y = = 2\n        ^\nSyntaxError: invalid syntax\n'
    )


@pytest.mark.parametrize("ending", ["", "\nx"])
@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("return 5", "'return' outside function"),
        ("def f(): await x", "'await' outside async function"),
        ("if x: break", "'break' outside loop"),
        ("y = 1; del None", "cannot delete None"),
        ("é = 'ü'; return é", "'return' outside function"),
    ],
)
def test_a_syntax_error_of_the_compiler_shows_its_line(error, line, message, ending):
    found = error(f"x = 1\n{line}{ending}")

    assert (found.message, found.line) == (message, 2)
    assert found.traceback.startswith(f'  File "<cell 1>", line 2\n    {line}\n')
    assert "^" in found.traceback.splitlines()[2]


def test_a_syntax_error_in_code_that_the_cell_compiles_has_the_cells_line(error):
    found = error("x = 1\ncompile('a b', 'other', 'exec')")

    assert found.line == 2
    assert '  File "<cell 1>", line 2, in <module>\n' in found.traceback
    assert '  File "other", line 1\n' in found.traceback


def test_frames_of_libraries_and_of_the_engine_are_left_out(error):
    found = error("import json\njson.loads('[1,')")

    assert found.type == "json.decoder.JSONDecodeError"
    assert found.line == 2
    assert found.traceback.count("  File ") == 1


def test_frames_of_files_in_the_workspace_are_shown(namespace, error):
    code = compile("def helper():\n    1 / 0\n", "/workspace/helper.py", "exec")
    exec(code, namespace.globals)

    found = error("helper()")

    assert '  File "/workspace/helper.py", line 2, in helper\n' in found.traceback
    assert found.line == 1


def test_the_line_is_the_innermost_of_the_cell_itself(error):
    found = error("def f(g):\n    g()", "def h():\n    1 / 0\nf(h)")
    assert found.line == 2
    assert error("def f():\n    1 / 0", "x = 1\nf()").line == 2


@pytest.mark.parametrize(
    ("source", "kind", "message"),
    [
        ("raise KeyError('k')", "KeyError", "'k'"),
        ("raise ValueError", "ValueError", ""),
        ("class E(Exception): pass\nraise E('m')", "E", "m"),
        ("class A:\n    class B(Exception): pass\nraise A.B(1)", "A.B", "1"),
        ("import zlib\nzlib.decompress(b'x')", "zlib.error", None),
        ("import sys\nsys.exit(3)", "SystemExit", "3"),
        ("raise AssertionError('a\\nb')", "AssertionError", "a\nb"),
    ],
)
def test_type_and_message_are_given_apart(error, source, kind, message):
    found = error(source)

    assert found.type == kind
    assert message is None or found.message == message
    assert f"\n{kind}" in found.traceback


def test_causes_and_contexts_are_shown_in_order(error):
    found = error(
        "try:\n"
        "    try:\n        1 / 0\n"
        "    except ZeroDivisionError as e:\n        raise KeyError('k') from e\n"
        "except KeyError:\n    raise ValueError('v')\n"
    )
    places = [
        found.traceback.index(text)
        for text in (
            "ZeroDivisionError: division by zero",
            "direct cause of the following exception",
            "KeyError: 'k'",
            "During handling of the above exception",
            "ValueError: v",
        )
    ]
    assert places == sorted(places)
    assert found.traceback.endswith("ValueError: v\n")


def test_a_suppressed_context_is_not_shown(error):
    found = error("try:\n    1 / 0\nexcept ZeroDivisionError:\n    raise KeyError from None")
    assert "ZeroDivisionError" not in found.traceback


def test_notes_are_shown(error):
    found = error("e = ValueError('v')\ne.add_note('look here')\nraise e")
    assert found.traceback.endswith("ValueError: v\nlook here\n")


def test_members_of_a_group_are_shown_with_their_frames(error):
    found = error(
        "def f():\n    1 / 0\n"
        "errors = [KeyError('k')]\n"
        "try: f()\nexcept ZeroDivisionError as e: errors.append(e)\n"
        "raise ExceptionGroup('both', [*errors, ExceptionGroup('deep', [TypeError('t')])])"
    )
    assert found.type == "ExceptionGroup"
    assert found.message == "both (3 sub-exceptions)"
    for line in ("  | KeyError: 'k'\n", '  |   File "<cell 1>", line 2, in f\n'):
        assert line in found.traceback
    assert "  |   | TypeError: t\n" in found.traceback


# ── bounds ───────────────────────────────────────────────────────────────────────────────────────


def test_a_deep_recursion_shows_both_ends(error):
    found = error("def inner(): 1 / 0\ndef f(n):\n    f(n - 1) if n else inner()\nf(500)")

    assert "frames left out]" in found.traceback
    assert ", in <module>" in found.traceback
    assert ", in inner" in found.traceback
    assert len(found.traceback) < 4_000


@pytest.mark.parametrize(
    "source",
    [
        "raise ValueError('x' * 10_000_000)",
        "x = '" + "y" * 1_000_000 + "' + 1",
        "x = = '" + "y" * 1_000_000 + "'",
        "e = ValueError()\nfor _ in range(1000): e.add_note('n' * 10_000)\nraise e",
        "raise ExceptionGroup('g', [ValueError('v' * 10_000)] * 1000)",
        "e = None\n"
        "for n in range(5000):\n"
        "    new = ValueError('v' * 5000)\n    new.__cause__ = e\n    e = new\n"
        "raise e",
        "e = ValueError()\nfor _ in range(500): e = ExceptionGroup('g', [e, e])\nraise e",
    ],
    ids=["message", "line", "syntax", "notes", "group", "chain", "nested groups"],
)
def test_every_part_is_bounded(error, source):
    found = error(source)
    assert len(found.traceback) < TOTAL_LIMIT + 200
    assert len(found.message) < 5_000


def test_a_chain_that_runs_in_a_circle_ends(error):
    found = error(
        "a = ValueError('a')\nb = ValueError('b')\na.__cause__ = b\nb.__cause__ = a\nraise a"
    )
    assert found.traceback.count("ValueError: a\n") == 1


# ── hostile exceptions ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "body",
    [
        "def __str__(self): raise LookupError('no')",
        "def __str__(self): raise SystemExit",
        "def __str__(self): raise KeyboardInterrupt",
        "def __str__(self): return 5",
        "def __str__(self): return self.__str__()",
    ],
)
def test_a_message_that_cannot_be_formatted_has_a_replacement(error, body):
    found = error(f"class E(Exception):\n    {body}\nraise E")

    assert found.type == "E"
    assert "its message cannot be shown" in found.message
    assert found.line == 3


def test_the_message_is_formatted_once(error, namespace):
    error(
        "calls = []\n"
        "class E(Exception):\n"
        "    def __str__(self):\n        calls.append(1)\n        return 'm'\n"
        "raise E"
    )
    assert namespace.globals["calls"] == [1]


def test_no_other_method_of_an_exception_runs(error, namespace):
    found = error(
        "calls = []\n"
        "class Meta(type):\n"
        "    def __getattribute__(cls, name):\n"
        "        calls.append(name)\n        return type.__getattribute__(cls, name)\n"
        "    def __hash__(cls): calls.append('hash'); return 1\n"
        "    def __eq__(cls, other): calls.append('eq'); return True\n"
        "class E(Exception, metaclass=Meta):\n"
        "    def __getattribute__(self, name): calls.append(name); return 1 / 0\n"
        "    __cause__ = __context__ = property(lambda self: calls.append('property'))\n"
        "    __traceback__ = __class__ = property(lambda self: calls.append('class'))\n"
        "    def __repr__(self): calls.append('repr')\n"
        "e = E('m')\n"
        "calls.clear()\n"
        "raise e"
    )
    assert (found.type, found.message, found.line) == ("E", "m", 15)
    assert namespace.globals["calls"] == []


def test_a_message_of_a_class_derived_from_str_is_plain_text(error):
    found = error(
        "class S(str):\n"
        "    def __len__(self): 1 / 0\n"
        "    encode = isascii = __getitem__ = __format__ = __len__\n"
        "class E(Exception):\n    def __str__(self): return S('text')\n"
        "raise E"
    )
    assert type(found.message) is str
    assert found.message == "text"


def test_text_that_no_encoding_can_carry_is_escaped(error):
    found = error("raise ValueError('é\\ud800')")

    assert found.message == "é\\ud800"
    found.traceback.encode()


def test_lines_are_there_though_the_user_emptied_the_line_cache(error):
    found = error("def f():\n    1 / 0", "import linecache\nlinecache.clearcache()\nf()")
    assert "    1 / 0\n" in found.traceback
    assert "    f()\n" in found.traceback


def test_lines_are_shown_though_the_line_cache_is_broken(error, monkeypatch):
    monkeypatch.setattr(linecache, "getline", None)
    monkeypatch.setattr(linecache, "getlines", None)
    found = error("x = 1\n1 / 0")

    assert 'File "<cell 1>", line 2' in found.traceback
    assert found.traceback.endswith("ZeroDivisionError: division by zero\n")


# ── without a session ────────────────────────────────────────────────────────────────────────────


def test_an_exception_that_was_never_raised_can_be_described():
    assert describe(ValueError("v"), 1) == ErrorInfo("ValueError", "v", "ValueError: v\n", None)


def test_describing_never_raises(monkeypatch):
    """A description whose parts are broken still has the kind of the error."""
    break_descriptions(monkeypatch)
    assert describe(ValueError("v"), 1) == ErrorInfo("ValueError", "", "ValueError\n", None)


def test_hints_use_the_current_builtins(error, monkeypatch):
    monkeypatch.setattr(builtins, "frobnicate", 1, raising=False)
    assert "'frobnicate'" in error("frobnicat").traceback


@pytest.mark.parametrize(
    ("cells", "places"),
    [
        (
            ["src = 'def f(xs):\\n  return xs[9]\\n'\nns = {}\nexec(src, ns)\nns['f']([])"],
            ['File "<cell 1>", line 4, in <module>', 'File "<string>", line 2, in f\nIndexError'],
        ),
        (["eval('1 / 0')"], ['File "<string>", line 1, in <module>\nZeroDivisionError']),
        (
            ["exec(compile('x = 1\\nx / 0', 'solution.py', 'exec'))"],
            ['File "solution.py", line 2, in <module>\nZeroDivisionError'],
        ),
        # The lines in linecache count as those of a file of that name.
        (
            [
                "open('solution.py', 'w').write('x = 1\\nx / 0')",
                "exec(compile(open('solution.py').read(), 'solution.py', 'exec'))",
            ],
            ['File "solution.py", line 2, in <module>\n    x / 0\n'],
        ),
        (
            [
                "import linecache\ns = 'x = 1\\nx / 0\\n'\n"
                "linecache.cache['<made>'] = (len(s), None, s.splitlines(True), '<made>')\n"
                "exec(compile(s, '<made>', 'exec'))"
            ],
            ['File "<made>", line 2, in <module>\n    x / 0\n'],
        ),
        (
            ["open('own.py', 'w').write('def f():\\n    1 / 0\\n')\nimport own\nown.f()"],
            ['/own.py", line 2, in f\n    1 / 0\n'],
        ),
        # A file that was changed meanwhile appears in its current form.
        (
            [
                "open('own.py', 'w').write('def f():\\n    1 / 0\\n')\nimport own, importlib\n"
                "try: own.f()\nexcept Exception as e: raise e",
                "open('own.py', 'w').write('\\n\\ndef f():\\n    2 / 0\\n')\n"
                "importlib.reload(own).f()",
            ],
            ['/own.py", line 4, in f\n    2 / 0\n'],
        ),
        (
            [
                "import runpy, tempfile\npath = f'{tempfile.mkdtemp()}/s.py'\n"
                "open(path, 'w').write('1 / 0')\nrunpy.run_path(path)"
            ],
            ['/s.py", line 1, in <module>\n    1 / 0\n'],
        ),
        (
            ["from threading import Thread\nexec('def f(:')"],
            ['File "<cell 1>", line 2, in <module>', 'File "<string>", line 1\n    def f(:\n'],
        ),
        (
            ["open('bad.py', 'w').write('x = 1\\ny = (\\n')\nimport bad"],
            ['File "<cell 1>", line 2, in <module>', '/bad.py", line 2\n    y = (\n'],
        ),
        # Reading the named file might not end.
        (
            ["exec(compile('1 / 0', '/dev/zero', 'exec'))"],
            ['File "/dev/zero", line 1, in <module>'],
        ),
    ],
)
def test_lines_of_generated_code_are_shown(sandbox, cells, places):
    with sandbox.session() as session:
        for cell in cells:
            outcome = session.run(cell)
    assert outcome.error is not None
    for place in places:
        assert place in outcome.error.traceback, outcome.error.traceback
