"""Cases found by trying libraries and programs: inputs and right values as text, in found.jsonl.

Each case is code here, or names the test that has it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from repl_sandbox import Sandbox, Session

HERE = Path(__file__).parent
TESTS = HERE.parent
CASES: dict[str, dict[str, Any]] = {
    case["id"]: case
    for case in map(json.loads, (HERE / "found.jsonl").read_text(encoding="utf-8").splitlines())
}

POLARS = "import polars as pl\ndf = pl.DataFrame({'g': [1, 1, 2], 'v': [1, 2, 3]})\n"
GROUPED = "df.group_by('g').agg(pl.col('v').sum()).height"
WRITTEN = (
    "import sqlite3\nc = sqlite3.connect('w.db')\nc.execute('pragma journal_mode=wal')\n"
    "c.execute('create table t (n)')\nc.executemany('insert into t values (?)', [(n,) for n in "
    "range(5)])\nc.commit()"
)
STACK = "import resource\nresource.setrlimit(resource.RLIMIT_STACK, {})"
DILL = (
    "import dill, io\nkept = [1]\ndill.dump_session('s.pkl')\nkept = None\n"
    "dill.load_session('s.pkl')\nkept"
)
BUILTINS = "import builtins\n[n for n in dir(builtins) if not n.isidentifier()]"
SCHEDULED = (
    "import os\nos.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))\n"
    "os.sched_getscheduler(0) == os.SCHED_OTHER"
)
STREAMS = "import sys\n[sys.stdout.mode, sys.stdout.name, sys.stderr.name]"

# Code and the value of its last expression.
VALUES = {
    "C16": [(SCHEDULED, "True")],
    "C17": [
        (STACK.format("(resource.RLIM_INFINITY, resource.RLIM_INFINITY)") + "\n1", "1"),
        (STACK.format("(1 << 28, 1 << 28)") + "\n1", "1"),
    ],
    "C18": [(BUILTINS, "[]")],
    "C20": [(DILL, "[1]")],
    "C32": [(STREAMS, "['w', '<stdout>', '<stderr>']")],
}

# Code, and words of the text that its error shows.
HINTS = {
    "C22": [("open('/mnt/data/a.txt', 'w')", "/workspace")],
    "C27": [
        (
            "import multiprocessing as mp\ndef f(q): q.put(1)\n"
            "q = mp.get_context('spawn').Queue()\n"
            "mp.get_context('spawn').Process(target=f, args=(q,)).start()",
            "PicklingError",
        )
    ],
    "C33": [("python\nprint(1)", "python")],
}

# Cases whose libraries, tier or front door has tests of its own: a file, and a name in it.
ELSEWHERE = {
    "C04": ("sandbox/snapshots/test_library_pools.py", "begins_anew"),
    "C07": ("security/tiers/test_confined_sessions.py", "costs_no_earlier_file"),
    "C08": ("security/tiers/test_confined_programs.py", "cgroup"),
    "C09": ("security/tiers/test_confined_programs.py", "after_a_takeover_and_in_a_branch"),
    "C10": ("security/tiers/test_confined_programs.py", '"pip"'),
    "C12": ("sandbox/jail/test_first_worker.py", "preload"),
    "C13": ("server/cli/test_serving.py", "confined"),
    "C14": ("training/inspect_ai/test_provider.py", "run_side_by_side"),
    "C15": ("training/inspect_ai/test_provider.py", "truncated_output"),
    "C21": ("sandbox/worker/namespace/test_multiprocessing.py", "backend='threading'"),
    "C23": ("repl_env/rlm/test_rlm_runner.py", "prose"),
    "C26": ("sandbox/protocol/test_json_conversion.py", "index"),
    "C28": ("sandbox/worker/display/test_error_hints.py", "TkAgg"),
}


def test_every_case_is_tried() -> None:
    here = {*VALUES, *HINTS, "C01", "C05", "C24"}
    assert not here & ELSEWHERE.keys()
    assert CASES.keys() == here | ELSEWHERE.keys()


@pytest.mark.parametrize("case", ELSEWHERE)
def test_the_test_of_a_case_is_there(case: str) -> None:
    file, name = ELSEWHERE[case]
    assert name in (TESTS / file).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(history=1) as sandbox:
        yield sandbox


@pytest.fixture
def session(sandbox: Sandbox) -> Iterator[Session]:
    with sandbox.session() as session:
        yield session


@pytest.mark.parametrize(("code", "value"), [pair for pairs in VALUES.values() for pair in pairs])
def test_code_has_its_right_value(session: Session, code: str, value: str) -> None:
    outcome = session.run(code)
    assert outcome.ok, outcome
    assert outcome.value == value


@pytest.mark.parametrize(("code", "words"), [pair for pairs in HINTS.values() for pair in pairs])
def test_an_error_says_what_to_do(session: Session, code: str, words: str) -> None:
    error = session.run(code, timeout=20).error
    assert error is not None
    assert words in f"{error.type}: {error.message}\n{error.traceback}"


def test_polars_works_or_says_that_its_threads_are_lost(session: Session) -> None:
    assert session.run(POLARS + GROUPED).value == "2"
    died = session.run("import os\nos._exit(1)")
    assert any("polars" in lost for lost in died.lost)
    again = session.run(GROUPED, timeout=20)
    assert again.error is not None
    assert "polars lost its threads when the session was restored" in again.error.message


def test_a_database_in_wal_mode_survives_a_branch(session: Session) -> None:
    assert session.run(WRITTEN).ok
    with session.branch() as branch:
        branch.run(
            "import sqlite3\nd = sqlite3.connect('w.db')\nd.execute('insert into t values (9)')"
        )
        branch.run("d.commit()")
    outcome = session.run("c.execute('select count(*) from t').fetchone()[0]")
    assert outcome.value == "5", outcome


@pytest.mark.parametrize("name", ["__builtins__", "_out", "__name__"])
def test_a_name_of_the_session_is_not_set(session: Session, name: str) -> None:
    with pytest.raises(ValueError, match=name):
        session.set(name, {})
    assert session.run("len([1])").value == "1"
