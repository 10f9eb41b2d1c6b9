"""Evaluation of one cell: like the body of a module; any exception is its result."""

from __future__ import annotations

import gc
import inspect
import json
import linecache
import os
import pickle
import subprocess
import sys
import warnings
import weakref

import pytest

from repl_sandbox.worker import namespace
from repl_sandbox.worker.evaluation import CellRun, run_cell

# ── the last expression ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ("6 * 7", "42"),
        ("'text'", "'text'"),
        ("x = 6\nx * 7", "42"),
        ("x = 6\nx * 7;", None),
        ("(1,\n 2)\n\n# done", "(1, 2)"),
        ("x = 1; x", "1"),
        ("None", None),
        ("print", "<built-in function print>"),
        ("x = 1", None),
        ("x == 1 if (x := 2) else 0", "False"),
        ("x: int = 1", None),
        ("def f(): return 1", None),
        ("class C: pass", None),
        ("for x in range(3):\n    x", None),
        ("if True:\n    5", None),
        ("import sys", None),
        ("x = y = 1; 'a;b'", "'a;b'"),
        ("x = '''a\n= 1'''\nx", "'a\\n= 1'"),
        ("", None),
        ("\n\n  # only a comment", None),
    ],
)
def test_the_last_expression_is_shown_as_a_repl_does(run, source, value):
    assert run(source) == CellRun(value, None)


def test_the_shown_value_is_bound_to_an_underscore(run):
    run("[1, 2]")
    assert run("_ + [3]").value == "[1, 2, 3]"
    run("None")
    assert run("_").value == "[1, 2, 3]"


def test_a_repr_that_raises_is_the_cells_error(run):
    run("class Bad:\n    def __repr__(self): return 1 / 0")
    result = run("Bad()")

    assert result.value is None
    assert result.error.type == "ZeroDivisionError"
    assert 'File "<cell 1>", line 2, in __repr__' in result.error.traceback


def test_an_assignment_ends_with_its_line_break_only(run):
    """The fast path for one assignment does not apply to source that continues after it."""
    assert run("x = 1\r2").value == "2"
    assert run("x = 1; 2").value == "2"
    assert run("x = 1\n\n\n").value is None
    assert run("x = 1 \\\n + 1\nx").value == "2"
    assert run("x == 2").value == "True"


# ── behaves as a module ──────────────────────────────────────────────────────────────────────────


def test_functions_see_globals_of_later_cells(run):
    run("def f(): return later")
    run("later = 5")
    assert run("f()").value == "5"


def test_recursion_closures_generators_and_comprehensions_see_globals(run):
    run("n = 3\ndef fact(k): return 1 if k < 2 else k * fact(k - 1)")
    assert run("fact(5)").value == "120"
    assert run("[n * i for i in range(3) if i < n]").value == "[0, 3, 6]"
    assert run("def g():\n    yield from (n + i for i in range(2))\nlist(g())").value == "[3, 4]"
    assert run("def count():\n    global n\n    n += 1\ncount()\nn").value == "4"


def test_classes_of_cells_can_be_pickled(run):
    run("import dataclasses\n@dataclasses.dataclass\nclass P:\n    x: int\np = P(1)")

    copy = pickle.loads(pickle.dumps(run.get("p")))

    assert copy == run.get("p")
    assert run("P.__module__").value == "'__main__'"


def test_the_main_guard_is_true(run):
    assert run("seen = []\nif __name__ == '__main__':\n    seen.append(1)\nseen").value == "[1]"


def test_future_statements_hold_for_later_cells_and_for_no_earlier(run):
    assert run("def f(a: nowhere): pass\nf.__annotations__").error.type == "NameError"
    assert run("from __future__ import annotations").error is None
    assert run("def f(a: nowhere): pass\nf.__annotations__").value == "{'a': 'nowhere'}"


def test_future_statements_of_this_package_do_not_leak_into_cells(run):
    assert run("def f(a: int): pass\nf.__annotations__").value == "{'a': <class 'int'>}"


def test_variables_bound_before_an_exception_are_kept(run):
    run("a = 1\nb = 1 / 0\nc = 3")
    assert run("a").value == "1"
    assert run("c").error.type == "NameError"


def test_protected_names_are_restored_in_the_next_cell_and_reported(run, capfd):
    run.namespace.inject("tool", len, protected=True)
    run("tool = 5")
    assert run.get("tool") == 5

    assert run("tool('abc')").value == "3"
    assert "tool belongs to the session" in capfd.readouterr().err


def test_protected_names_are_restored_by_a_cell_and_not_between_cells(run, capfd):
    run.namespace.inject("tool", len, protected=True)
    run("tool = 5")
    run_cell("None", 0, run.namespace)

    assert run.get("tool") == 5
    assert capfd.readouterr().err == ""


# ── errors ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        ("1 / 0", "ZeroDivisionError"),
        ("raise SystemExit", "SystemExit"),
        ("import sys; sys.exit(2)", "SystemExit"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("raise GeneratorExit", "GeneratorExit"),
        ("raise MemoryError", "MemoryError"),
        ("def f(): f()\nf()", "RecursionError"),
        ("raise BaseException('b')", "BaseException"),
        ("raise ExceptionGroup('g', [ValueError(1)])", "ExceptionGroup"),
        ("import asyncio\nraise asyncio.CancelledError", "asyncio.exceptions.CancelledError"),
        ("class E(Exception): pass\nraise E", "E"),
    ],
)
def test_every_exception_is_the_cells_error_and_the_session_goes_on(run, source, kind):
    result = run(source)

    assert result.value is None
    assert result.error.type == kind
    assert run("1 + 1").value == "2"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("x = = 1", "invalid syntax"),
        ("yield 1", "'yield' outside function"),
        ("return 1", "'return' outside function"),
        ("  x = 1", "unexpected indent"),
        ("def f():\n    await x", "'await' outside async function"),
        ("x = '\ud800'", "the source contains the lone surrogate '\\ud800'"),
        ("a = 1\nx = 1\0", "null byte"),
        ("-" * 100_000 + "1", "nested too deeply"),
        ("(" * 10_000, "too many nested parentheses"),
        ("a" + ".a" * 50_000, "nested too deeply"),
        ("not " * 50_000 + "1", "nested too deeply"),
    ],
)
def test_source_that_is_no_python_is_a_syntax_error(run, source, message):
    result = run(source)

    assert result.error.type in ("SyntaxError", "IndentationError")
    assert message in result.error.message.replace("a NUL character", "null byte")
    result.error.traceback.encode()
    assert run("1 + 1").value == "2"


def test_nothing_of_a_cell_runs_if_its_last_expression_cannot_be_compiled(run):
    run("x = 1\nawait_ = 2\nlambda: (yield)\nreturn")
    assert "x" not in run.namespace.globals


def test_syntax_warnings_name_the_line_of_the_cell_and_come_once(run):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert run("y = 1\nx = 5 is 5\nx").value == "True"

    assert [(str(w.filename), w.lineno) for w in caught] == [("<cell 1>", 2)]


def test_an_error_keeps_nothing_of_the_cell_alive(run):
    run("class C: pass")
    tracked = []
    run.namespace.globals["track"] = lambda value: tracked.append(weakref.ref(value))
    run("def f():\n    local = C()\n    track(local)\n    1 / 0")
    assert run("f()").error.type == "ZeroDivisionError"
    gc.collect()

    assert tracked[0]() is None


@pytest.mark.parametrize(
    "sabotage",
    [
        "import builtins\nbuiltins.compile = builtins.eval = builtins.exec = builtins.repr = None",
        "import sys\nsys.stdout = sys.stderr = sys.excepthook = sys.displayhook = None",
        "import traceback\ntraceback.FrameSummary = traceback.StackSummary = None",
        "import linecache\nlinecache.cache = {}\nlinecache.getline = None",
        "import linecache\nlinecache.clearcache()",
        "import ast, json, os, re\nast.walk = json.dumps = os.write = re.compile = None",
        "import sys\nsys.modules = {}",
    ],
)
def test_a_cell_that_breaks_the_standard_library_breaks_only_itself(sabotage):
    """In a process of its own, since it breaks the standard library."""
    program = (
        "import json, os, sys\n"
        "from repl_sandbox.worker.evaluation import run_cell\n"
        "from repl_sandbox.worker.namespace import Namespace\n"
        "write, encode, space, results = os.write, json.JSONEncoder().encode, Namespace(), []\n"
        "for n, cell in enumerate((sys.argv[1], 'x = 20\\nx + 22', '1 / 0', \"'FINAL(1)'\")):\n"
        "    ran = run_cell(cell, n, space, printed=lambda text, last: results.append(text))\n"
        "    results.append([ran.value, ran.error and [ran.error.type, ran.error.line]])\n"
        "write(1, encode(results).encode())\n"
        "os._exit(0)\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", program, sabotage],
        env={"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        check=True,
        timeout=60,
    )

    assert json.loads(found.stdout) == [
        [None, None],
        ["42", None],
        [None, ["ZeroDivisionError", 1]],
        "FINAL(1)",
        ["'FINAL(1)'", None],
    ]


# ── sources ──────────────────────────────────────────────────────────────────────────────────────


def test_the_source_of_functions_can_be_read(run):
    run("x = 1\ndef f(a):\n    return a")
    assert inspect.getsource(run.get("f")) == "def f(a):\n    return a\n"


def test_lines_are_split_where_python_splits_them(run):
    source = "a = '\x0c\u2028'\r\nb = 2\r1 / 0"
    result = run(source)

    assert result.error.line == 3
    assert "1 / 0" in result.error.traceback


def test_only_the_sources_of_the_last_cells_are_kept(run, monkeypatch):
    run("def old(): return 1 / 0")
    monkeypatch.setattr(namespace, "KEPT_CELLS", 3)
    monkeypatch.setattr(namespace, "FORGOTTEN_AT_ONCE", 2)
    for _ in range(4):
        run("x = 1")

    assert "<cell 1>" not in linecache.cache
    assert all(f"<cell {number}>" in linecache.cache for number in (3, 4, 5))
    error = run("old()").error
    assert 'File "<cell 1>", line 1, in old' in error.traceback


def test_sources_are_kept_up_to_a_number_of_characters(run, monkeypatch):
    monkeypatch.setattr(namespace, "KEPT_CHARACTERS", 10_000)
    run("a = '" + "x" * 6_000 + "'")
    run("b = '" + "x" * 6_000 + "'")

    assert "<cell 1>" not in linecache.cache
    assert "<cell 2>" in linecache.cache
