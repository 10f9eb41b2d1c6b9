"""Immortal objects: using the objects of a template copies no page."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from repl_sandbox import Limits, Sandbox, Session
from tests.sandbox.shown_value import value

# Reference count that PEP 683 gives an immortal object; no object has so many references.
IMMORTAL = 1 << 31
LISTS = 100_000
LIMITS = Limits(timeout=60, memory="1GiB")


def interpreters() -> Iterator[str]:
    """This interpreter, and those that pyenv and uv install beside it."""
    yield sys.executable
    for path in sorted(Path(sys.base_prefix).parent.glob("*/bin/python3.[0-9][0-9]")):
        yield str(path)


def with_immortal_objects(paths: Iterable[str]) -> str | None:
    asked = "import sys; assert sys.version_info >= (3, 12) and sys.getrefcount(None) >= 1 << 31"
    for path in paths:
        with contextlib.suppress(OSError, subprocess.CalledProcessError):
            subprocess.run([path, "-c", asked], check=True, capture_output=True)
            return path
    return None


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    python = with_immortal_objects(interpreters())
    if python is None:
        pytest.skip("no CPython from 3.12 on, which has immortal objects, here or beside this one")
    with Sandbox(python=python, limits=LIMITS, recovery="restart") as made:
        yield made


def unshared_memory(session: Session) -> int:
    """Bytes of pages that the session's process has written, its own part of the template's too."""
    rows = "open('/proc/self/smaps_rollup').read().splitlines()"
    found = value(session, f"sum(int(r.split()[1]) for r in {rows} if 'Private_Dirty' in r)")
    assert found is not None
    return 1024 * int(found)


def test_iterating_over_shared_objects_copies_no_page(sandbox: Sandbox) -> None:
    rows = [{"name": f"name {number}", "tags": ["a", str(number)]} for number in range(LISTS)]
    with sandbox.with_shared(rows=rows) as sharing, sharing.session() as session:
        before = unshared_memory(session)
        walked = value(session, "sum(len(row[key]) for row in rows for key in row)")
        assert walked == str(sum(len(row["name"]) + 2 for row in rows))
        # Each of the rows is some 500 bytes: 50 MB in all.
        assert unshared_memory(session) - before < 10 * LISTS


@pytest.mark.parametrize(
    "found",
    [
        "json",
        "json.dumps",
        "json.dumps.__code__",
        "json.dumps.__code__.co_consts",
        "next(name for name in vars(json) if name == 'dumps')",
        "json.JSONEncoder",
        "print",
    ],
)
def test_objects_of_a_template_are_immortal(sandbox: Sandbox, found: str) -> None:
    with sandbox.session() as session:
        assert value(session, f"import json, sys\nsys.getrefcount({found}) >= {IMMORTAL}") == "True"


def test_objects_of_a_session_are_freed_when_unused(sandbox: Sandbox) -> None:
    with sandbox.session() as session:
        session.run("class Made: pass\nimport sys, weakref\nmade = Made()")
        assert value(session, "sys.getrefcount(made) < 10") == "True"
        assert value(session, "seen = weakref.ref(made)\ndel made\nseen() is None") == "True"


def test_a_collection_leaves_what_the_template_holds(sandbox: Sandbox) -> None:
    with sandbox.with_shared(table={"a": [1, {"b": 2}]}) as sharing, sharing.session() as session:
        session.run("import gc\ngc.unfreeze()\ngc.collect()")
        assert value(session, "table") == "{'a': [1, {'b': 2}]}"
        session.run("del table\ngc.collect()")
        assert value(session, "table = {'own': 1}\ntable") == "{'own': 1}"
