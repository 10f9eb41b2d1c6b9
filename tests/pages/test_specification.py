"""docs/specification.md: each promise names tests, and each of those exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
DOCS = TESTS.parent / "docs"
SPECIFICATION = (DOCS / "specification.md").read_text(encoding="utf-8")
ROWS = [
    row.strip("| ").split(" | ")
    for row in SPECIFICATION.partition("\n## Layers")[0].splitlines()
    if row.startswith("| ") and not row.startswith(("| promise |", "| --- |"))
]
NAMED = sorted(set(re.findall(r"`([\w/]+\.py::\w+)`", SPECIFICATION)))


def functions(file: Path) -> set[str]:
    """The names of the functions at the top of a module."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in tree.body if isinstance(node, kinds)}


@pytest.mark.parametrize("name", NAMED)
def test_a_named_test_exists(name: str) -> None:
    file, _, function = name.partition("::")
    assert function.startswith("test_")
    assert function in functions(TESTS / file)


def test_every_promise_has_a_test_and_is_listed_once() -> None:
    assert len(ROWS) > 40
    for row in ROWS:
        promise, tests = row
        assert promise.endswith(".")
        assert re.fullmatch(r"`[\w/]+\.py::test_\w+`(<br>`[\w/]+\.py::test_\w+`)*", tests), row
    promises = [promise for promise, _ in ROWS]
    assert len(promises) == len(set(promises))


def test_the_threat_model_names_every_group_of_the_corpus() -> None:
    from tests.security.abuse.case import FILES, load

    model = (DOCS / "threat-model.md").read_text(encoding="utf-8")
    groups = {case.group for file in FILES for case in load(file)}
    # Cases of a language policy, which is no isolation layer.
    missing = {group for group in groups - {"python-level"} if f"`{group}`" not in model}
    assert missing == set()
