"""CPython's own tests: what passes beside a session but not in one is in a table, with a reason."""

from __future__ import annotations

import fnmatch
import importlib.util
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from repl_sandbox import Limits, Sandbox

HERE = Path(__file__).parent
SOURCE = (HERE / "module_outcomes.py").read_text(encoding="utf-8")
TABLE = tomllib.loads((HERE / "only_in_sessions.toml").read_text(encoding="utf-8"))
MODULES: list[str] = TABLE["modules"]
REASONS: dict[str, str] = {
    f"test.{name}": row["reason"] for row in TABLE["rows"] for name in row["tests"]
}
SECONDS = 900.0


@pytest.fixture(scope="module")
def sandbox():
    if importlib.util.find_spec("test.support") is None:
        pytest.fail("this interpreter has no tests: apt-get install libpython3-testsuite")
    # Modules start hundreds of threads, and write sparse files of several gigabytes.
    limits = Limits(
        timeout=SECONDS, processes=600, memory="4GiB", workspace="2GiB", file_size="8GiB"
    )
    with Sandbox(isolation="jailed", limits=limits, recovery="restart") as sandbox:
        yield sandbox


def beside_a_session(name: str, folder: Path) -> dict[str, str]:
    """The outcomes in an interpreter without options, with an empty standard input."""
    program = f"{SOURCE}\nimport json\nprint('\\n@outcomes', json.dumps(outcomes({name!r})))"
    ran = subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder,
        env={name: value for name, value in os.environ.items() if not name.startswith("PYTHON")},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    lines = [line for line in ran.stdout.splitlines() if line.startswith("@outcomes ")]
    assert lines, ran.stderr[-2_000:]
    return dict(json.loads(lines[-1].removeprefix("@outcomes ")))


def in_a_session(sandbox: Sandbox, name: str) -> dict[str, str]:
    with sandbox.session() as session:
        assert session.run(SOURCE).ok
        ran = session.run(f"by_test = outcomes({name!r})")
        assert ran.ok, ran
        return dict(session.get("by_test"))


@pytest.mark.parametrize("name", MODULES)
def test_a_module_fails_in_a_session_where_the_table_says_so(sandbox, name, tmp_path):
    plain, inside = beside_a_session(name, tmp_path), in_a_session(sandbox, name)
    assert len(plain) > 5
    assert plain.keys() == inside.keys(), "tests that only one of the two ran"
    worse = {test: said for test, said in inside.items() if severity(said) > severity(plain[test])}
    unexplained = {test: said for test, said in worse.items() if not reasons_of(test)}
    assert unexplained == {}
    # A test that does not pass beside a session, for an ordinary user say, contradicts no row.
    stale = {
        test: reasons_of(test)
        for test, said in plain.items()
        if said == "passed" and reasons_of(test) and test not in worse
    }
    assert stale == {}, "tests in the table that pass in a session"


def severity(said: str) -> int:
    return ["passed", "skipped", "failed"].index(said.partition(":")[0])


def reasons_of(test: str) -> list[str]:
    return [why for pattern, why in REASONS.items() if fnmatch.fnmatchcase(test, pattern)]


def test_each_row_has_a_reason_and_belongs_to_a_module():
    assert len(MODULES) == len(set(MODULES)) >= 25
    patterns = [pattern for row in TABLE["rows"] for pattern in row["tests"]]
    assert len(patterns) == len(set(patterns))
    assert all(len(row["reason"]) > 20 and row["tests"] for row in TABLE["rows"])
    folders = tuple(f"{name}." for name in MODULES)
    assert [pattern for pattern in patterns if not pattern.startswith(folders)] == []
