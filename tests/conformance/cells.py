"""Cells: what stays, what is displayed, how an error reads, awaiting, threads, programs."""

from __future__ import annotations

from .steps import PROCESSES, Check, Fresh, Like, Run, raises, shows


def _check(name: str, *steps: Run | Fresh, needs: frozenset[str] = frozenset()) -> Check:
    return Check(name, "cells", steps, needs=needs)


CELLS = (
    _check(
        "variables stay", Run("x = 6", shows(changes=(("new", "x"),))), Run("x * 7", shows("42"))
    ),
    _check(
        "functions, classes and imports stay",
        Run("import math\ndef f(r): return math.floor(r)\nclass C:\n    n = 3"),
        Run("f(2.5) + C().n", shows("5")),
    ),
    _check("the last expression is displayed", Run("1\n'two'", shows("'two'"))),
    _check("None is not displayed", Run("None", shows())),
    _check("an assignment is not displayed", Run("x = 1", shows())),
    _check("a cell without statements does nothing", Run("", shows()), Run("# only this", shows())),
    _check("the last value is _", Run("40 + 2", shows("42")), Run("_ / 2", shows("21.0"))),
    _check(
        "changes are named",
        Run("a = 1; b = [2]", shows(changes=(("new", "a"), ("new", "b")))),
        Run(
            "a = 2; del b; c = 3",
            shows(changes=(("modified", "a"), ("new", "c"), ("deleted", "b"))),
        ),
    ),
    _check("the namespace is that of __main__", Run("__name__", shows("'__main__'"))),
    _check(
        "classes of a session can be pickled",
        Run(
            "import dataclasses, pickle\n@dataclasses.dataclass\nclass P:\n    x: int\n"
            "pickle.loads(pickle.dumps(P(3)))",
            shows("P(x=3)"),
        ),
    ),
    _check(
        "a fresh session has a namespace of its own",
        Run("x = 1"),
        Fresh(),
        Run("x", raises("NameError", Like("name 'x' is not defined.*"))),
    ),
    # ── errors ───────────────────────────────────────────────────────────────────────────────────
    _check(
        "an error has its type, message, line and source",
        Run(
            "x = 1\ny = x / 0",
            raises("ZeroDivisionError", "division by zero", 2, traceback=Like(".*y = x / 0.*")),
        ),
    ),
    _check(
        "what ran before an error stays",
        Run(
            "a = 1\nprint('before')\n1 / 0\nb = 2",
            raises("ZeroDivisionError", "division by zero", 3, stdout="before\n"),
        ),
        Run("a, 'b' in globals()", shows("(1, False)")),
    ),
    _check(
        "an error in a function of an earlier cell names this cell's line",
        Run("def f(x):\n    return 1 / x"),
        Run(
            "\n\nf(0)",
            raises("ZeroDivisionError", "division by zero", 3, traceback=Like(".*return 1 / x.*")),
        ),
    ),
    _check(
        "a syntax error has its line",
        Run("x = 1\nif x\n    y = 2", raises("SyntaxError", "expected ':'", 2)),
    ),
    _check(
        "a syntax error runs nothing",
        Run("x = 1\n)", raises("SyntaxError", "unmatched ')'", 2)),
        Run("'x' in globals()", shows("False")),
    ),
    _check(
        "an error of one's own keeps its text",
        Run("raise ValueError('ü', 2)", raises("ValueError", "('ü', 2)")),
    ),
    _check(
        "a chain of errors is told",
        Run(
            "try:\n    {}['k']\nexcept KeyError:\n    raise OSError('second')",
            raises("OSError", "second", 4, traceback=Like(".*KeyError: 'k'.*OSError: second.*")),
        ),
    ),
    _check(
        "sys.exit ends the cell and not the session",
        Run("x = 1\nimport sys\nsys.exit(3)", raises("SystemExit", "3", 3)),
        Run("x", shows("1")),
    ),
    _check(
        "there is no terminal to read from",
        Run("input('? ')", raises("EOFError", Like(".+"), stdout=Like(r"(\? )?"))),
    ),
    _check(
        "input reads what code has put in the place of standard input",
        Run("import io, sys\nsys.stdin = io.StringIO('3\\n')\ninput()", shows("'3'")),
    ),
    _check(
        "a file of the working directory is a module",
        Run("with open('own.py', 'w') as f: _n = f.write('v = 1')"),
        Run("import own\nown.v", shows("1")),
    ),
    _check(
        "endless recursion is an error",
        Run(
            "def f():\n    return f()\nf()",
            raises("RecursionError", Like("maximum recursion depth.*"), 2),
        ),
    ),
    # ── awaiting, threads, programs ──────────────────────────────────────────────────────────────
    _check(
        "await works at the top level",
        Run(
            "import asyncio\nasync def f():\n    await asyncio.sleep(0)\n    return 5\nawait f()",
            shows("5"),
        ),
    ),
    _check(
        "tasks meet",
        Run(
            "import asyncio\nasync def f(n): return n * n\n"
            "await asyncio.gather(*(f(n) for n in range(4)))",
            shows("[0, 1, 4, 9]"),
        ),
    ),
    _check(
        "an awaited error is an error",
        Run(
            "async def f():\n    1 / 0\nawait f()",
            raises("ZeroDivisionError", "division by zero", 2),
        ),
    ),
    _check(
        "asyncio.run works",
        Run("import asyncio\nasync def f(): return 5\nasyncio.run(f())", shows("5")),
    ),
    _check(
        "threads work",
        Run(
            "import threading\nfound = []\n"
            "threads = [threading.Thread(target=found.append, args=(n,)) for n in range(8)]\n"
            "[thread.start() for thread in threads]; [thread.join() for thread in threads]\n"
            "sorted(found)",
            shows("[0, 1, 2, 3, 4, 5, 6, 7]"),
        ),
    ),
    _check(
        "programs can be run",
        Run(
            "import subprocess, sys\n"
            "subprocess.run([sys.executable, '-c', 'print(6 * 7)'], capture_output=True).stdout",
            shows(r"b'42\n'"),
        ),
        needs=PROCESSES,
    ),
    _check(
        "a fork's result comes back",
        Run(
            "import os\nr, w = os.pipe()\npid = os.fork()\n"
            "if pid == 0:\n    os.write(w, b'child')\n    os._exit(0)\n"
            "os.waitpid(pid, 0)\nos.read(r, 10)",
            shows("b'child'"),
        ),
        needs=PROCESSES,
    ),
    _check(
        "the workspace is writable and stays",
        Run("open('f.txt', 'w').write('text')", shows("4")),
        Run("open('f.txt').read()", shows("'text'")),
    ),
)
