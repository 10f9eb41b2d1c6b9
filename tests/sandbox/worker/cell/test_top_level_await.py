"""Top-level `await`: tasks, interrupts and the loop between cells."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading

import pytest

from repl_sandbox.worker.namespace import Namespace

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


def test_context_variables_of_an_awaiting_cell_stay_set(run):
    run("import asyncio, contextvars, decimal\nv = contextvars.ContextVar('v')")
    run("v.set(1)\nawait asyncio.sleep(0)\ndecimal.setcontext(decimal.Context(prec=3))")
    assert run("v.get(), decimal.Decimal(1) / 3").value == "(1, Decimal('0.333'))"
    run("await asyncio.sleep(0)\nv.set(2)\nraise ValueError")
    assert run("v.get()").value == "2"
    assert run("await asyncio.sleep(0)\nv.get()").value == "2"
    # A task's own value stays its own.
    run("async def f(): v.set(3)\nawait asyncio.create_task(f())")
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


def test_asyncio_without_tasks_behaves_as_usual(run):
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


def test_cells_run_with_any_object_in_the_place_of_asyncio(run, monkeypatch):
    for there in (None, object()):
        run.namespace.offers_loop = False
        monkeypatch.setitem(sys.modules, "asyncio", there)
        assert run("1 + 1  # asyncio").value == "2"


def test_the_error_of_an_unawaited_task_is_reported(run, capfd, caplog):
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
    """Interrupt this thread once the cell has bound `name`."""
    done = threading.Event()
    me = threading.get_ident()

    def watch() -> None:
        while name not in namespace.globals:
            if done.wait(0.001):
                return
        # A signal just before a system call that blocks does not interrupt that call: it is sent
        # again for as long as this thread stays in the frame that it was in.
        frame = sys._current_frames()[me]
        signal.pthread_kill(me, signal.SIGINT)
        while not done.wait(0.05) and sys._current_frames()[me] is frame:
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


def test_an_interrupted_task_is_not_reported_in_a_later_cell(run, capfd, caplog):
    with interrupt_when(run.namespace, "go"):
        run(
            "import asyncio\nasync def f():\n    global go\n    go = 1\n    while True: pass\n\n"
            "t = asyncio.create_task(f())\nawait asyncio.sleep(100)"
        )
    run("import gc\ndel t\ngc.collect()")

    assert "never retrieved" not in caplog.text + capfd.readouterr().err


def test_a_task_with_an_unawaited_error_is_reported(run, capfd, caplog):
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


def test_a_cell_that_swallows_its_cancellation_does_not_block_the_session(run):
    with interrupt_when(run.namespace, "go"):
        result = run(
            "import asyncio\nstopped = False\ngo = 1\n"
            "while not stopped:\n"
            "    try: await asyncio.sleep(100)\n"
            "    except asyncio.CancelledError: pass\n"
        )

    assert result.error.type == "KeyboardInterrupt"
    assert run("stopped = True\nawait asyncio.sleep(0, 'on')").value == "'on'"
