"""A small task, and a sandbox for the tests of a file."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from repl_sandbox import Sandbox

TOML = """
name = "double"
instruction = "Write `double(x)` in double.py."
metric = "share"
direction = "maximize"
submission = ["double.py"]
module = "double"
split = "test"
difficulty = "easy"
group = "numbers"

[scores]
baseline = 0.0
reference = 1.0

[limits]
call = 20
evaluation = 40
validations = 3
steps = 6
"""
EVALUATE = """
pairs = [[n, 2 * n] for n in range(4)]
score(sum(call("double", [n]) == twice for n, twice in pairs) / len(pairs), {"secret": 7})
"""
GOOD = "def double(x):\n    return 2 * x\n"
HALF = "def double(x):\n    return 2 * x if x < 2 else 0\n"


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox() as made:
        yield made


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def writing(toml: str = TOML, **files: str) -> Path:
        given = {"evaluator/evaluate.py": EVALUATE, "starter/double.py": HALF}
        given |= {
            "baseline/double.py": "def double(x):\n    return 1\n",
            "solution/double.py": GOOD,
        }
        for path, text in {**given, **files, "task.toml": toml}.items():
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(textwrap.dedent(text))
        return tmp_path

    return writing
