"""Modules in the workspace: found like those beside a script, and never by the worker itself."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from repl_sandbox import Finished, Killed, Outcome, Policy, Raised, Sandbox, Session

WRITE = """
import importlib, os, runpy, subprocess, sys
def write(path, text):
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    with open(path, "w") as file:
        file.write(text)
"""

EDIT_AT_ONCE = """
found = []
for number in range(40):
    write(f"made{number}.py", "x = 1")
    found.append(__import__(f"made{number}").x)
    write(f"made{number}.py", "x = 2")
    del sys.modules[f"made{number}"]
    found.append(__import__(f"made{number}").x)
sum(found)
"""

RUN_AT_ONCE = """
write("main.py", "import part; print(part.x)")
found = ""
for number in range(3):
    write("part.py", f"x = {number}")
    found += subprocess.run([sys.executable, "main.py"], capture_output=True, text=True).stdout
found
"""


def value(session: Session, *cells: str) -> str | None:
    outcome: Outcome | None = None
    for cell in cells:
        outcome = session.run(cell)
        assert isinstance(outcome, Finished), (cell, outcome)
    assert isinstance(outcome, Finished)
    return outcome.value


@pytest.mark.parametrize(
    ("cells", "shown"),
    [
        (["write('helper.py', 'v = 1')", "import helper\nhelper.v"], "1"),
        (["write('helper.py', 'v = 1')\nimport helper\nhelper.v"], "1"),
        (["write('helper.py', 'v = 1')\nfrom helper import *\nv"], "1"),
        (
            [
                "write('helper.py', 'v = 1')\nimport helper",
                "write('helper.py', 'v = 2')\nimportlib.reload(helper).v",
            ],
            "2",
        ),
        ([EDIT_AT_ONCE], "120"),
        ([RUN_AT_ONCE], r"'0\n1\n2\n'"),
        (
            [
                "write('pk/__init__.py', 'from .a import f')",
                "write('pk/a.py', 'from . import b\\ndef f(): return b.v')",
                "write('pk/b.py', 'v = 3')\nimport pk\npk.f()",
            ],
            "3",
        ),
        # A namespace package, and a module added to a loaded package.
        (["write('space/a.py', 'v = 4')\nimport space.a\nspace.a.v"], "4"),
        (["import space_b", "1"], None),
        (
            [
                "write('pk/__init__.py', '')\nimport pk",
                "write('pk/late.py', 'v = 5')\nimport pk.late\npk.late.v",
            ],
            "5",
        ),
        (["write('sub/own.py', 'v = 6')\nsys.path.insert(0, 'sub')\nimport own\nown.v"], "6"),
        (["sys.path.append('later')", "write('later/own.py', 'v = 7')\nimport own\nown.v"], "7"),
        # The current directory counts besides the workspace itself.
        (
            [
                "write('above.py', 'v = 8')\nwrite('sub/own.py', 'import above\\nv = above.v')",
                "os.chdir('sub')\nimport own\nown.v",
            ],
            "8",
        ),
        (
            [
                "write('part.py', 'v = 9')\nwrite('main.py', 'import part\\nv = part.v')",
                "runpy.run_path('main.py')['v']",
            ],
            "9",
        ),
        (
            [
                "write('part.py', 'v = 1')\nwrite('main.py', 'import part\\nv = part.v')",
                "exec(open('main.py').read())\nv",
            ],
            "1",
        ),
        (
            [
                "write('part.py', 'print(5)')",
                "subprocess.run([sys.executable, '-m', 'part'], capture_output=True).stdout",
            ],
            r"b'5\n'",
        ),
        # A loader that code makes finds no bytecode of an earlier text either.
        (
            [
                "from importlib.machinery import SourceFileLoader",
                "from importlib.util import module_from_spec, spec_from_file_location\nfound = []",
                "for number in range(9):\n"
                "    write('part.py', f'v = {number}')\n"
                "    spec = spec_from_file_location('part', 'part.py')\n"
                "    for loader in (spec.loader, SourceFileLoader('part', 'part.py')):\n"
                "        module = module_from_spec(spec)\n"
                "        loader.exec_module(module)\n"
                "        found.append(module.v)\n"
                "sum(found)",
            ],
            "72",
        ),
        # As for a script: the first match on the path wins, except for loaded modules.
        (["write('wave.py', 'v = 1')\nimport wave\nwave.v"], "1"),
        (["write('json.py', 'v = 1')\nimport json\njson.dumps(2)"], "'2'"),
        (["write('a.py', '')\nimport a\nos.listdir()"], "['a.py']"),
        (
            [
                "import zipfile\nz = zipfile.ZipFile('z.zip', 'w')\nz.writestr('inz.py', 'v = 1')",
                "z.close()\nsys.path.append('z.zip')\nimport inz\ninz.v",
            ],
            "1",
        ),
    ],
)
def test_modules_of_the_workspace(session: Session, cells: list[str], shown: str | None) -> None:
    session.run(WRITE)
    if shown is None:
        outcome = session.run(cells[0])
        assert isinstance(outcome, Raised)
        assert outcome.error.type == "ModuleNotFoundError"
    else:
        assert value(session, *cells) == shown


@pytest.mark.parametrize("cell", ["import json\njson.own", "from json import own"])
def test_an_ignored_module_file_is_named(session: Session, cell: str) -> None:
    session.files.put("json.py", "own = 1")
    outcome = session.run(cell)
    assert isinstance(outcome, Raised)
    assert "/json.py was there: give that file another name" in outcome.error.traceback


def test_modules_go_with_the_state(copied: Session) -> None:
    """After a rollback, a crash and in a branch, imports find the modules in that state's files."""
    copied.files.put("helper.py", "v = 1")
    assert value(copied, "import helper, importlib, os\nhelper.v") == "1"
    assert value(copied, "open('helper.py', 'w').write('v = 2')\n0") == "0"
    copied.rollback()
    assert value(copied, "importlib.reload(helper).v") == "1"
    assert isinstance(copied.run("open('helper.py', 'w').write('v = 3')\nos._exit(1)"), Killed)
    assert value(copied, "importlib.reload(helper).v") == "1"
    value(copied, "os.mkdir('pk')\nopen('pk/__init__.py', 'w').write('')\nimport pk")
    with copied.branch() as branch:
        value(branch, "open('helper.py', 'w').write('v = 4')")
        value(branch, "open('pk/late.py', 'w').write('v = 5')")
        assert value(branch, "import pk.late\nimportlib.reload(helper).v, pk.late.v") == "(4, 5)"
    assert value(copied, "importlib.reload(helper).v") == "1"


HOSTILE = """
import os
os.write(2, f"HOSTILE {__name__}\\n".encode())
raise SystemExit("hostile")
"""

# Cases in which the worker, or the standard library on its behalf, imports a module.
LATE = [
    "known = 1\nknwon",
    "[].appendd",
    "def f(:",
    "if 1:\n    x = (1 +\n         2 / 0)",
    "raise ExceptionGroup('a', [ValueError(1), KeyError('\\ud800')])",
    "exec('1 / 0')",
    "async def f(): return 1 / 0\nawait f()",
    "import warnings\nwarnings.warn('x')",
    "input()",
    "import sys\nsys.stdout.close()",
    "print({'a': [1]})",
]


def test_the_worker_never_imports_from_the_workspace(sandbox: Sandbox) -> None:
    with sandbox.session(seed=1) as session:
        names = sorted({*sys.stdlib_module_names, "cloudpickle", "numpy", "repl_sandbox"})
        session.files.put_all({f"{name}.py": HOSTILE for name in names})
        for cell in LATE:
            outcome = session.run(cell)
            error = outcome.error.traceback if isinstance(outcome, Raised) else ""
            assert "hostile" not in f"{outcome.stdout}{outcome.stderr}{error}".casefold(), cell


def test_the_worker_does_not_import_from_the_workspace_for_a_checkpoint() -> None:
    with Sandbox() as sandbox:
        with sandbox.session(seed=1) as session:
            session.files.put_all({f"{name}.py": HOSTILE for name in sys.stdlib_module_names})
            session.files.put("cloudpickle.py", HOSTILE)
            value(session, "known = 1")
            checkpoint = session.checkpoint()
        with sandbox.restore(checkpoint) as session:
            assert value(session, "known") == "1"


@pytest.mark.parametrize("name", ["concurrent", "heapq", "queue", "difflib", "random"])
def test_the_worker_does_not_confuse_a_module_of_the_session_with_the_library(
    session: Session, name: str
) -> None:
    session.files.put(f"{name}.py", "own = 1")
    value(session, f"import {name}\n{name}.own")
    value(session, "async def f(): return 2")
    assert value(session, "await f()") == "2"
    outcome = session.run("known = 1\nknwon")
    assert isinstance(outcome, Raised)
    assert "Did you mean: 'known'?" in outcome.error.traceback
    assert value(session, f"import {name}, sys\nsys.modules[{name!r}].own") == "1"


def test_a_snapshot_that_takes_over_does_not_import_from_the_workspace(copied: Session) -> None:
    for name in ("subprocess", "random", "concurrent", "multiprocessing", "logging"):
        copied.files.put(f"{name}.py", "own = 1")
        value(copied, f"import {name}\n{name}.own")
    value(copied, "async def f(): return 2", "await f()")
    value(
        copied,
        "import threading\nheld = threading.Event()\nthreading.Thread(target=held.wait).start()",
    )
    died = copied.run("import os\nos._exit(1)")
    assert died.state == "rolled_back", died
    assert value(copied, "await f()") == "2"
    assert value(copied, "random.own") == "1"


@pytest.fixture(scope="module")
def lint() -> Iterator[Sandbox]:
    policy = Policy("lint", imports=["json", "own", "pk"], calls_denied=["eval"])
    with Sandbox(policy=policy) as sandbox:
        yield sandbox


@pytest.mark.parametrize(
    ("files", "cell", "refused"),
    [
        ({"own.py": "import json\nv = 1"}, "import own\nown.v", None),
        ({"own.py": "v = 1\nimport os"}, "import own", "own.py: line 2, column 8: import of 'os'"),
        ({"own.py": "def f():\n    eval('1')"}, "import own", "own.py: line 2, column 5: the call"),
        ({"own.py": "import other", "other.py": ""}, "import own", "import of 'other'"),
        ({"other.py": ""}, "import other", "line 1, column 8: import of 'other'"),
        ({"pk/__init__.py": "from .a import v", "pk/a.py": "v = 1"}, "import pk\npk.v", None),
        ({"pk/__init__.py": "from . import a", "pk/a.py": "import os"}, "import pk", "pk/a.py"),
    ],
)
def test_lint_checks_modules_as_cells(
    lint: Sandbox, files: dict[str, str], cell: str, refused: str | None
) -> None:
    with lint.session() as session:
        session.files.put_all(files)
        if refused is None:
            assert value(session, cell) == "1"
            return
        outcome = session.run(cell)
    assert isinstance(outcome, Raised), outcome
    assert outcome.error.type == "PolicyError"
    assert refused in outcome.error.message
    assert outcome.error.line == 1


def test_lint_imports_no_modules_of_archives() -> None:
    packed = "import zipfile\nwith zipfile.ZipFile('a.zip', 'w') as z: z.writestr('own.py', '')"
    policy = Policy("lint", calls_denied=["eval"])
    with Sandbox(policy=policy) as sandbox, sandbox.session() as session:
        value(session, packed)
        for place in ("a.zip", "/workspace/a.zip"):
            value(session, f"import sys\nsys.path.insert(0, {place!r})")
        outcome = session.run("import own")
    assert isinstance(outcome, Raised), outcome
    assert outcome.error.type == "ModuleNotFoundError"


def test_restricted_code_has_no_modules_of_the_workspace() -> None:
    pytest.importorskip("RestrictedPython")
    with Sandbox(policy=Policy("restricted")) as sandbox, sandbox.session() as session:
        session.files.put_all({"own.py": "v = 1", "_strptime.py": HOSTILE})
        outcome = session.run("import own")
        assert isinstance(outcome, Raised)
        assert outcome.error.type == "PolicyError"
        strptime = "from datetime import datetime\ndatetime.strptime('2020', '%Y').year"
        assert value(session, strptime) == "2020"
