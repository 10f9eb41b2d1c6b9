"""One cell: it behaves as the body of a module does, and whatever it raises is its result."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import inspect
import json
import linecache
import os
import pickle
import signal
import subprocess
import sys
import threading
import warnings
import weakref

import pytest

from repl_sandbox.worker.cell.cell_evaluation import CellRun, run_cell
from repl_sandbox.worker.namespace import cell_sources
from repl_sandbox.worker.namespace.main_namespace import Namespace


@pytest.fixture
def namespace():
    main, ours = sys.modules["__main__"], dict(vars(asyncio))
    made = Namespace()
    yield made
    sys.modules["__main__"] = main
    vars(asyncio).update(ours)
    if made.loop is not None:
        pending = asyncio.all_tasks(made.loop)
        for task in pending:
            task.cancel()
        if pending:
            made.loop.run_until_complete(asyncio.gather(*pending, return_exceptions=True))
        made.loop.close()
        asyncio.set_event_loop(None)
    made.globals.clear()
    gc.collect()  # what this session left complains here, not in the middle of another test


class Session:
    """Cells with numbers that count up, as in a session."""

    def __init__(self, namespace: Namespace) -> None:
        self.namespace = namespace
        self.number = 0

    def __call__(self, source: str, **options) -> CellRun:
        self.number += 1
        return run_cell(source, self.number, self.namespace, **options)

    def get(self, name: str) -> object:
        return self.namespace.globals[name]


@pytest.fixture
def run(namespace):
    return Session(namespace)


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
    """The short cut for one assignment is not taken for source that goes on after it."""
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


def test_protected_names_are_back_in_the_next_cell_and_it_is_said(run, capfd):
    run.namespace.inject("tool", len, protected=True)
    run("tool = 5")
    assert run.get("tool") == 5

    assert run("tool('abc')").value == "3"
    assert "tool belongs to the session" in capfd.readouterr().err


def test_names_are_put_back_by_a_cell_and_not_between_two(run, capfd):
    run.namespace.inject("tool", len, protected=True)
    run("tool = 5")
    run_cell("None", 0, run.namespace)

    assert run.get("tool") == 5
    assert capfd.readouterr().err == ""


# ── await ────────────────────────────────────────────────────────────────────────────────────────


def test_await_works_at_the_top_level(run):
    run("import asyncio\nasync def f(): return 5")
    assert run("await f()").value == "5"
    assert run("x = await f()\nx + 1").value == "6"
    assert run("x = await f()").value is None
    assert run("x").value == "5"


def test_async_for_and_async_with_work_at_the_top_level(run):
    run(
        "import contextlib\n"
        "async def numbers():\n    yield 1\n    yield 2\n"
        "@contextlib.asynccontextmanager\nasync def held():\n    yield 'held'\n"
    )
    assert run("got = []\nasync for n in numbers():\n    got.append(n)\ngot").value == "[1, 2]"
    assert run("async with held() as h:\n    pass\nh").value == "'held'"
    assert run("[n async for n in numbers()]").value == "[1, 2]"


def test_a_cell_without_await_runs_outside_of_the_loop(run):
    assert run("import asyncio\nasyncio.run(asyncio.sleep(0, 'own loop'))").value == "'own loop'"


def test_tasks_of_one_cell_go_on_when_a_later_one_awaits(run):
    run(
        "import asyncio\nready = asyncio.Event()\n"
        "async def work():\n    await ready.wait()\n    return 7"
    )
    run("task = asyncio.create_task(work())\nawait asyncio.sleep(0)")
    assert run("task.done()").value == "False"
    run("ready.set()")
    assert run("await task").value == "7"


def test_what_an_awaiting_cell_sets_in_its_context_later_cells_have(run):
    run("import asyncio, contextvars, decimal\nv = contextvars.ContextVar('v')")
    run("v.set(1)\nawait asyncio.sleep(0)\ndecimal.setcontext(decimal.Context(prec=3))")
    assert run("v.get(), decimal.Decimal(1) / 3").value == "(1, Decimal('0.333'))"
    run("await asyncio.sleep(0)\nv.set(2)\nraise ValueError")
    assert run("v.get()").value == "2"
    assert run("await asyncio.sleep(0)\nv.get()").value == "2"
    run("async def f(): v.set(3)\nawait asyncio.create_task(f())")  # a task's own is its own
    assert run("v.get()").value == "2"


def test_an_exception_behind_an_await_shows_the_cells_lines_only(run):
    result = run("import asyncio\nasync def f():\n    raise KeyError('k')\nawait f()")

    assert result.error.type == "KeyError"
    assert result.error.line == 3
    assert result.error.traceback.count("File ") == 2


def test_the_loop_is_usable_after_an_exit_inside_a_coroutine(run):
    assert (
        run("import asyncio\nasync def f(): raise SystemExit(3)\nawait f()").error.type
        == "SystemExit"
    )
    assert run("await asyncio.sleep(0, 'on')").value == "'on'"


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ("1;", None),
        ("x = 5\nx;", None),
        ("(x) ;  # a comment; and more", None),
        ("x; \n\n# the end\n", None),
        ("'a' \\\n ;", None),
        ("'é' + f('ü');", None),
        ("f(\n  1\n);\n", None),
        ("1;\r\n", None),
        ("await g();", None),
        ("1; 2", "2"),
        ("';'", "';'"),
        ("'a;'  # x;", "'a;'"),
        ("x = 1; x", "1"),
        ("1  # ;", "1"),
        ("[';',\n ';']", "[';', ';']"),
        ("await g()  # ;", "3"),
    ],
)
def test_a_semicolon_behind_the_last_expression_shows_nothing(run, source, value):
    run("x = 7\nf = str\nasync def g(): return 3\n_ = 'before'")
    result = run(source)

    assert (result.error, result.value) == (None, value)
    assert run("_").value == "'before'"


@pytest.mark.parametrize(
    "begin",
    [
        "t = asyncio.create_task(f())",
        "t = asyncio.create_task(f(), name='mine')",
        "t = asyncio.ensure_future(f())",
        "t = asyncio.gather(f(), f())",
        "t = asyncio.shield(f())",
        "t = asyncio.get_event_loop().create_task(f())",
        "loop = asyncio.get_event_loop()\nt = loop.create_task(f())",
        "from asyncio import create_task, gather\nt = gather(create_task(f()), f())",
        "def begin(): return asyncio.create_task(f())\nt = begin()",
        "tasks = [asyncio.create_task(f()) for _ in range(3)]\nt = asyncio.gather(*tasks)",
        "asyncio.run(f())\nt = asyncio.gather(asyncio.create_task(f()))",
        "asyncio.run(f())\nt = asyncio.get_event_loop().create_task(f())",
    ],
)
@pytest.mark.parametrize("earlier", ["", "await asyncio.sleep(0)", "asyncio.run(asyncio.sleep(0))"])
@pytest.mark.filterwarnings("error")
def test_a_cell_that_awaits_nothing_may_begin_tasks_for_a_later_one(run, earlier, begin):
    run(f"import asyncio\n{earlier}")
    began = run(f"async def f(): return 5\n{begin}")
    assert began.error is None
    assert run("t.done()").value == "False"
    assert run("await t").value in ("5", "[5]", "[5, 5]", "[5, 5, 5]")


def test_a_task_begun_in_the_cell_that_imports_asyncio_is_awaited_by_the_next(run):
    assert (
        run("import asyncio\nasync def f(): return 5\nt = asyncio.create_task(f())").error is None
    )
    assert run("await t").value == "5"


def test_asyncio_is_as_ever_where_it_starts_no_task(run):
    assert run("import asyncio\nasync def f(): return 5\nasyncio.run(f())").value == "5"
    assert run("asyncio.get_running_loop()").error.type == "RuntimeError"
    assert run("loop = asyncio.new_event_loop()\nloop.run_until_complete(f())").value == "5"
    assert run("asyncio.set_event_loop(loop)\nasyncio.get_event_loop() is loop").value == "True"
    assert run("import pickle\npickle.loads(pickle.dumps(asyncio.gather)) is asyncio.gather").value
    assert (
        run(
            "import threading\nfailed = []\n"
            "def work():\n"
            "    c = f()\n"
            "    try: asyncio.create_task(c)\n"
            "    except RuntimeError: failed.append(1); c.close()\n"
            "t = threading.Thread(target=work); t.start(); t.join(); failed"
        ).value
        == "[1]"
    )
    run("loop.close()\nasyncio.set_event_loop(None)")


def test_cells_run_whatever_stands_in_the_place_of_asyncio(run, monkeypatch):
    for there in (None, object()):
        run.namespace.offers_loop = False
        monkeypatch.setitem(sys.modules, "asyncio", there)
        assert run("1 + 1  # asyncio").value == "2"


def test_the_error_of_a_task_that_no_cell_awaits_is_told(run, capfd, caplog):
    run("import asyncio\nasync def f(): 1 / 0\nt = asyncio.create_task(f())")
    run("await asyncio.sleep(0)\nawait asyncio.sleep(0)")
    run("import gc\ndel t\ngc.collect()")

    assert "never retrieved" in caplog.text + capfd.readouterr().err


def test_a_closed_loop_is_replaced(run):
    run("import asyncio\nloop = asyncio.get_running_loop()\nawait asyncio.sleep(0)")
    run("loop.close()")
    assert run("await asyncio.sleep(0, 'on')").value == "'on'"


@contextlib.contextmanager
def interrupt_when(namespace: Namespace, name: str):
    """Interrupts this thread once the cell has bound `name`."""
    done = threading.Event()
    me = threading.get_ident()

    def watch() -> None:
        while name not in namespace.globals:
            if done.wait(0.001):
                return
        signal.pthread_kill(me, signal.SIGINT)

    thread = threading.Thread(target=watch)
    thread.start()
    yield
    done.set()
    thread.join()


@pytest.mark.parametrize(
    "source",
    [
        "go = 1\nwhile True: pass",
        "import time\ngo = 1\ntime.sleep(100)",
        "import asyncio\ngo = 1\nawait asyncio.sleep(100)",
        "import asyncio\ngo = 1\nwhile True: await asyncio.sleep(0)",
        "import asyncio\nasync def f():\n    while True: pass\ngo = 1\nawait f()",
        "import asyncio\nasync def f():\n    global go\n    go = 1\n    while True: pass\n\n"
        + "t = asyncio.create_task(f())\nawait asyncio.sleep(100)",
    ],
    ids=["loop", "sleep", "await", "busy await", "busy coroutine", "busy task"],
)
def test_an_interrupt_ends_the_cell_and_leaves_a_usable_session(run, source):
    with interrupt_when(run.namespace, "go"):
        result = run(source)

    assert result.error.type == "KeyboardInterrupt"
    assert run("go").value == "1"
    assert run("import asyncio\nawait asyncio.sleep(0, 'on')").value == "'on'"


def test_an_interrupted_task_is_not_complained_of_in_a_later_cell(run, capfd, caplog):
    with interrupt_when(run.namespace, "go"):
        run(
            "import asyncio\nasync def f():\n    global go\n    go = 1\n    while True: pass\n\n"
            "t = asyncio.create_task(f())\nawait asyncio.sleep(100)"
        )
    run("import gc\ndel t\ngc.collect()")

    assert "never retrieved" not in caplog.text + capfd.readouterr().err


def test_a_task_whose_error_nobody_awaited_is_complained_of(run, capfd, caplog):
    run(
        "import asyncio\nasync def f(): 1 / 0\n"
        "t = asyncio.create_task(f())\nawait asyncio.sleep(0.001)"
    )
    run("import gc\ndel t\ngc.collect()")

    assert "never retrieved" in caplog.text + capfd.readouterr().err


def test_an_interrupted_await_runs_its_finally_blocks(run):
    with interrupt_when(run.namespace, "go"):
        run(
            "import asyncio\nlog = []\ngo = 1\n"
            "try:\n    await asyncio.sleep(100)\nfinally:\n    log.append(1)"
        )

    assert run("log").value == "[1]"


def test_an_interrupted_await_shows_where_the_cell_waited(run):
    with interrupt_when(run.namespace, "go"):
        result = run(
            "import asyncio\n"
            "async def wait():\n    global go\n    go = 1; await asyncio.sleep(100)\n"
            "await wait()"
        )

    assert (result.error.type, result.error.line) == ("KeyboardInterrupt", 4)
    assert "line 5, in <module>" in result.error.traceback
    assert "asyncio/" not in result.error.traceback


def test_an_interrupt_in_another_task_shows_that_task(run):
    with interrupt_when(run.namespace, "go"):
        result = run(
            "import asyncio\n"
            "async def spin():\n    global go\n    go = 1\n    while True: pass\n"
            "task = asyncio.create_task(spin())\n"
            "await asyncio.sleep(100)"
        )

    assert "in spin\n" in result.error.traceback
    assert "in <module>" not in result.error.traceback


def test_a_cell_that_swallows_its_cancellation_does_not_hold_the_session(run):
    with interrupt_when(run.namespace, "go"):
        result = run(
            "import asyncio\nstopped = False\ngo = 1\n"
            "while not stopped:\n"
            "    try: await asyncio.sleep(100)\n"
            "    except asyncio.CancelledError: pass\n"
        )

    assert result.error.type == "KeyboardInterrupt"
    assert run("stopped = True\nawait asyncio.sleep(0, 'on')").value == "'on'"


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
        "from repl_sandbox.worker.cell.cell_evaluation import run_cell\n"
        "from repl_sandbox.worker.namespace.main_namespace import Namespace\n"
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
    monkeypatch.setattr(cell_sources, "KEPT_CELLS", 3)
    monkeypatch.setattr(cell_sources, "FORGOTTEN_AT_ONCE", 2)
    for _ in range(4):
        run("x = 1")

    assert "<cell 1>" not in linecache.cache
    assert all(f"<cell {number}>" in linecache.cache for number in (3, 4, 5))
    error = run("old()").error
    assert 'File "<cell 1>", line 1, in old' in error.traceback


def test_sources_are_kept_up_to_a_number_of_characters(run, monkeypatch):
    monkeypatch.setattr(cell_sources, "KEPT_CHARACTERS", 10_000)
    run("a = '" + "x" * 6_000 + "'")
    run("b = '" + "x" * 6_000 + "'")

    assert "<cell 1>" not in linecache.cache
    assert "<cell 2>" in linecache.cache


# ── printed forms ────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def forms(run):
    """Runs a cell and gives the printed forms that it was seen to write."""

    def collect(source: str) -> list[tuple[str, bool]]:
        seen: list[tuple[str, bool]] = []
        result = run(source, printed=lambda text, last: seen.append((text, last)))
        assert result.error is None, result.error.traceback
        return seen

    return collect


@pytest.mark.parametrize(
    ("source", "seen"),
    [
        ("print('FINAL(42)')", [("FINAL(42)", False)]),
        ("n = 4\nprint(f'FINAL({n})')", [("FINAL(4)", False)]),
        ("n = 4\nprint('FINAL(' + str(n) + ')')", [("FINAL(4)", False)]),
        ("print('FINAL(%d)' % 4)", [("FINAL(4)", False)]),
        ("print('FINAL({})'.format(4))", [("FINAL(4)", False)]),
        ("print('FINAL(' 'x' + ')')", [("FINAL(x)", False)]),
        ("print('FINAL_VAR(x)')", [("FINAL_VAR(x)", False)]),
        ("print('so:', 'FINAL(1)', sep='\\n')", [("FINAL(1)", False)]),
        ("def f():\n    print('FINAL(1)')\nf()\nf()", [("FINAL(1)", False)] * 2),
        ("if True:\n    print('FINAL(1)')", [("FINAL(1)", False)]),
        ("'FINAL(42)'", [("FINAL(42)", True)]),
        ("n = 4\nf'FINAL({n})'", [("FINAL(4)", True)]),
        ("x = 'FINAL(1)'", []),
        ("'FINAL(1)'\nx = 1", []),
        ("context = 'FINAL(1)'\nprint(context)", []),
        ("context = 'FINAL(1)'\n# FINAL step\nprint(context)", []),
        ("context = 'FINAL(1)'\nprint(f'{context}')  # FINAL(", []),
        ("context = 'FINAL(1)'\nprint('' + context)", []),
        ("context = 'FINAL(1)'\ncontext", []),
        ("print(' FINAL(1)')", [(" FINAL(1)", False)]),
        ("print('The FINAL(1)')", []),
        ("print('x', end='FINAL(1)')", []),
        ("print(*['FINAL(1)'])", []),
        ("import sys\nsys.stdout.write('FINAL(1)')", []),
        ("print('FINAL(1)'.lower())", []),
        ("print(b'FINAL(1)')", []),
        ("print('FINAL(1)' * 2)", []),
    ],
)
def test_only_text_that_the_cell_itself_writes_is_a_printed_form(forms, source, seen):
    assert forms(source) == seen


def test_a_printed_form_is_evaluated_once_and_unchanged(run, forms, capsys):
    forms("calls = []\ndef f():\n    calls.append(1)\n    return 5\nprint(f'FINAL({f()})')")

    assert run("calls").value == "[1]"
    assert capsys.readouterr().out == "FINAL(5)\n"


def test_the_hook_is_no_variable_and_no_global(run, forms):
    forms("print('FINAL(1)')")
    assert list(run.namespace.variables()) == []
    assert not [name for name in run.namespace.globals if "print" in name]


def test_without_a_callback_the_cell_runs_as_it_is(run, capsys):
    assert run("def f(): print('FINAL(1)')\nf()\n'FINAL(2)'").value == "'FINAL(2)'"
    assert capsys.readouterr().out == "FINAL(1)\n"


def test_functions_with_printed_forms_still_run_when_they_are_not_looked_for(run, capsys):
    run("def f(): print('FINAL(1)')", printed=lambda text, last: None)
    assert run("f()").error is None
    assert capsys.readouterr().out == "FINAL(1)\n"


def test_an_error_inside_a_printed_form_points_at_its_place(run):
    source = "x = 1\nprint(f'FINAL({1 / 0})')"
    plain = run(source).error.traceback.replace("cell 1", "cell N")
    rewritten = run(source, printed=lambda text, last: None).error.traceback

    assert rewritten.replace("cell 2", "cell N") == plain


def test_a_refused_printed_form_raises_in_the_cell(run):
    def refuse(text: str, last: bool) -> None:
        raise ValueError("not a number")

    error = run("x = 1\nprint('FINAL(x)')", printed=refuse).error

    assert (error.type, error.message, error.line) == ("ValueError", "not a number", 2)
