"""Policy("lint"): imports and calls, checked before any of a cell runs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from repl_sandbox import Finished, Policy, Raised, Sandbox


@pytest.fixture(scope="module")
def imports() -> Iterator[Sandbox]:
    with Sandbox(policy=Policy("lint", imports=["json", "collections", "os.path"])) as sandbox:
        yield sandbox


@pytest.fixture(scope="module")
def calls() -> Iterator[Sandbox]:
    denied = ["eval", "open", "os.system", "subprocess", "pathlib.Path.write_text"]
    with Sandbox(policy=Policy("lint", calls_denied=denied)) as sandbox:
        yield sandbox


def refusal(sandbox: Sandbox, *cells: str) -> Raised:
    with sandbox.session() as session:
        for cell in cells[:-1]:
            assert isinstance(session.run(cell), Finished), cell
        outcome = session.run(cells[-1])
    assert isinstance(outcome, Raised), outcome
    assert outcome.error.type == "PolicyError", outcome.error
    return outcome


def allowed(sandbox: Sandbox, *cells: str) -> None:
    with sandbox.session() as session:
        for cell in cells:
            assert isinstance(session.run(cell), Finished), cell


@pytest.mark.parametrize(
    ("cell", "module", "line", "column"),
    [
        ("import os", "os", 1, 8),
        ("x = 1\nif x:\n    import json, sys as s", "sys", 3, 18),
        ("import os as json", "os", 1, 8),
        ("from os import system", "os", 1, 1),
        ("from os import path, system", "os", 1, 1),
        ("from jsonx import y", "jsonx", 1, 1),
        ("import collectionsx.abc", "collectionsx.abc", 1, 8),
        ("from . import x", ".", 1, 1),
        ("from .json import x", ".json", 1, 1),
        ("import 𝐬𝐲𝐬 as m", "sys", 1, 8),
        ("def f():\n    import shutil", "shutil", 2, 12),
        ("__import__('os')", "os", 1, 1),
        ("__import__(name='os')", "os", 1, 1),
        ("y = __import__('subprocess.x').run", "subprocess", 1, 5),
        ("__builtins__.__import__('os')", "os", 1, 1),
        ("getattr(__builtins__, '__import__')('os')", "os", 1, 1),
        ("i = __import__\ni('os')", "os", 2, 1),
    ],
)
def test_an_import_off_the_list_is_refused_with_its_place(imports, cell, module, line, column):
    error = refusal(imports, cell).error

    assert error.message.startswith(f"line {line}, column {column}: import of {module!r}")
    assert "imports allowed: collections, json, os.path" in error.message
    assert error.line == line


@pytest.mark.parametrize(
    "cell",
    [
        "import json",
        "import collections.abc as c",
        "from collections.abc import Mapping, Sequence",
        "import os.path",
        "from os import path",
        "from os.path import join",
        "from __future__ import annotations",
        "__import__('json').dumps(1)",
        "x = 'import os'",
    ],
)
def test_listed_modules_and_their_submodules_can_be_imported(imports, cell):
    allowed(imports, cell)


def test_an_import_whose_name_is_made_at_run_time_is_refused(imports):
    message = refusal(imports, "m = __import__('o' + 's')").error.message

    assert "must name its module as a plain text" in message


def test_importlib_is_an_import_too():
    with Sandbox(policy=Policy("lint", imports=["importlib", "json"])) as sandbox:
        allowed(sandbox, "import importlib\nimportlib.import_module('json').dumps(1)")
        for cell in (
            "import importlib\nimportlib.import_module('os')",
            "from importlib import import_module as load\nload('os.path')",
            "import importlib as i\nload = i.import_module\nload('os')",
            "import importlib\nimportlib.__import__('os')",
            "import importlib\nimportlib.import_module(''.join(['o', 's']))",
        ):
            refusal(sandbox, cell)


def test_an_empty_list_allows_no_import():
    with Sandbox(policy=Policy("lint", imports=[])) as sandbox:
        assert "imports allowed: none" in refusal(sandbox, "import json").error.message
        allowed(sandbox, "sum(range(4))")


@pytest.mark.parametrize(
    ("cell", "name", "line", "column"),
    [
        ("eval('1')", "eval", 1, 1),
        ("x = 1\ny = [eval(t) for t in '12']", "eval", 2, 6),
        ("import os\nos.system('true')", "os.system", 2, 1),
        ("import os as o\no.system('true')", "os.system", 2, 1),
        ("from os import system\nsystem('true')", "os.system", 2, 1),
        ("from os import system as s; s('true')", "os.system", 1, 29),
        ("from os import *\nsystem('true')", "os.system", 2, 1),
        ("import os\ns = os.system\ns('true')", "os.system", 3, 1),
        ("e = eval\nf = e\nf('1')", "eval", 3, 1),
        ("(e := eval)('1')\ne('2')", "eval", 2, 1),
        ("__import__('os').system('true')", "os.system", 1, 1),
        ("import os\ngetattr(os, 'system')('true')", "os.system", 2, 1),
        ("import builtins\nbuiltins.eval('1')", "eval", 2, 1),
        ("__builtins__.open('x')", "open", 1, 1),
        ("from subprocess import run\nrun(['true'])", "subprocess.run", 2, 1),
        ("import subprocess as sp\nsp.Popen(['true'])", "subprocess.Popen", 2, 1),
        (
            "from pathlib import Path\nPath.write_text(Path('x'), '')",
            "pathlib.Path.write_text",
            2,
            1,
        ),
        ("@eval\ndef f(): pass", "eval", 1, 2),
        ("def f():\n    return lambda: open('x')", "open", 2, 20),
        ("def open(x): pass\nopen(1)", "open", 2, 1),
    ],
)
def test_a_denied_call_is_refused_with_its_place(calls, cell, name, line, column):
    error = refusal(calls, cell).error

    assert error.message.startswith(f"line {line}, column {column}: the call of {name!r}")
    assert "calls denied: eval, open, os.system" in error.message
    assert error.line == line


@pytest.mark.parametrize(
    "cell",
    [
        "evaluate = len\nevaluate('x')",
        "import os\nos.getcwd()",
        "class A:\n    def system(self): pass\n    def open(self): pass\nA().system(); A().open()",
        "f = eval",
        "text = 'eval(1)'  # eval(1)",
        "from gzip import open\nopen",
        "node = type('N', (), {'next': None})\nnode = node.next",
    ],
)
def test_calls_that_are_not_denied_run(calls, cell):
    allowed(calls, cell)


def test_aliases_of_modules_are_tracked_across_cells(calls):
    assert refusal(calls, "from os import system as s", "s('true')").error.line == 1
    refusal(calls, "import os as o", "t = o.system", "t('true')")
    allowed(calls, "from os import system as s", "s = len", "s('abc')")
    allowed(calls, "import os as o", "def o(): pass", "o()")


def test_nothing_of_a_refused_cell_runs_or_is_remembered(imports):
    with imports.session() as session:
        session.run("x = 1")
        outcome = session.run("x = 2\nprint('ran')\nimport os")

        assert (outcome.stdout, outcome.changes, outcome.state) == ("", (), "kept")
        assert session.run("x").value == "1"


def test_one_error_has_the_number_of_further_ones(imports):
    message = refusal(imports, "import os\nimport sys\nfrom re import sub").error.message

    assert message.startswith("line 1, column 8: import of 'os'")
    assert "(and 2 more in this cell)" in message


def test_a_syntax_error_is_still_one(imports):
    with imports.session() as session:
        assert session.run("import").error.type == "SyntaxError"
        assert session.run("(" * 5000).error.type == "SyntaxError"
        assert session.run(".".join(["a"] * 100_000)).error.type == "SyntaxError"


def test_answers_and_top_level_await_work(calls):
    with calls.session(answers="compatible") as session:
        outcome = session.run("import asyncio\nawait asyncio.sleep(0)\nFINAL(3)")
        assert outcome.answers[0].value == 3
    with calls.session(answers="compatible") as session:
        assert session.run("print('FINAL(4)')").answers[0].text == "4"


def test_code_cannot_catch_the_policy_error(imports):
    """The error is raised before the cell's own `try` is entered."""
    refusal(imports, "try:\n    import os\nexcept Exception:\n    pass")
