"""Objects of a template are adjacent in memory, so that sessions that use them copy few pages."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import repl_sandbox
from repl_sandbox import Finished, Sandbox
from repl_sandbox.zygote.intern_names import NAMES

PACKAGE = Path(repl_sandbox.__file__).parent
POOLS = sys.implementation.name == "cpython" and "t" not in sys.abiflags

# Leaves holes of some sizes, each 25th object of many; prints for each size on how many pages new
# ones lie, without and with `compact_heap`.
HOLES = """
import json
from repl_sandbox.zygote.warmup import compact_heap

def pages(size):
    return len({id(each) >> 12 for each in [bytes(size) for _ in range(10)]})

sizes = range(40, 470, 60)
for size in sizes:
    many = [bytes(size) for _ in range(4000)]
    del many[::25]
    globals()[f"many_{size}"] = many
before = [pages(size) for size in sizes]
filled = compact_heap()
print(json.dumps([before, [pages(size) for size in sizes]]))
"""


@pytest.mark.skipif(not POOLS, reason="no pymalloc: another implementation, or no GIL")
def test_objects_made_after_filling_the_holes_are_adjacent() -> None:
    ran = subprocess.run([sys.executable, "-c", HOLES], check=True, capture_output=True, text=True)
    before, after = ast.literal_eval(ran.stdout)
    assert max(after) <= 3  # ten of up to 500 bytes, with one border of a page or two
    assert sum(after) < sum(before)


@pytest.mark.skipif(not POOLS, reason="no pymalloc: another implementation, or no GIL")
def test_the_names_that_sessions_look_up_are_adjacent() -> None:
    with Sandbox(recovery="restart") as sandbox, sandbox.session() as session:
        outcome = session.run(f"import sys\nlen({{id(sys.intern(n)) >> 12 for n in {NAMES!r}}})")
        assert isinstance(outcome, Finished), outcome
        assert outcome.value is not None
        # A page holds about fifty of a hundred names; a few are the interpreter's own, on 3.13 a
        # few more.
        assert int(outcome.value) < len(NAMES) // 3


def test_each_of_these_names_is_used() -> None:
    others = [path for path in PACKAGE.rglob("*.py") if path.name != "vocabulary.py"]
    used = set(re.findall(r"\w+", "\n".join(path.read_text("utf-8") for path in others)))
    of_trees = {
        name
        for kind in vars(ast).values()
        if isinstance(kind, type) and issubclass(kind, ast.AST)
        for name in (*kind._fields, *kind._attributes)
    }
    assert not set(NAMES) - used - of_trees
    assert len(set(NAMES)) == len(NAMES)
