"""docs/design.md says what is there: each module once, and the steps of the jail in their order."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from repl_sandbox.jail.recipe import (
    BIRTH,
    CLERK,
    CONFINED_INIT,
    CONFINED_WORKER,
    FOLDER,
    INIT,
    PROCESS_CLERK,
    PROCESS_INIT,
    PROCESS_WORKER,
    RECIPES,
    TOGETHER,
    VIEW,
    WORKER,
    Step,
)

ROOT = Path(__file__).parents[1]
DESIGN = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")


def first_column(header: str) -> list[str]:
    """The first cells of the rows of the one table whose first heading is `header`."""
    _, table = DESIGN.split(f"\n| {header} |")
    rows = table.partition("\n\n")[0].splitlines()[2:]
    return [row.split("|")[1].strip() for row in rows]


def holds_code(file: Path) -> bool:
    """Whether a module is more than a docstring."""
    statements = ast.parse(file.read_text(encoding="utf-8")).body
    return not all(isinstance(statement, ast.Expr) for statement in statements)


@pytest.mark.parametrize("package", ["sandbox/repl_sandbox", "repl_env", "server/repl_server"])
def test_each_module_has_one_row_in_the_map(package: str) -> None:
    """But for the `__init__` of inner folders that hold nothing."""
    root = ROOT / package
    files = [
        file.relative_to(root)
        for file in root.rglob("*.py")
        if file.name != "__init__.py" or file.parent == root or holds_code(file)
    ]
    modules = [f"`{file}`" for file in files]

    assert modules
    assert sorted(first_column(f"file in `{package}/`")) == sorted(modules)


@pytest.mark.parametrize(
    ("name", "steps"),
    [
        ("BIRTH", BIRTH),
        ("INIT", INIT),
        ("VIEW", VIEW),
        ("WORKER", WORKER),
        ("TOGETHER", TOGETHER),
        ("CONFINED_INIT", CONFINED_INIT),
        ("FOLDER", FOLDER),
        ("CONFINED_WORKER", CONFINED_WORKER),
        ("PROCESS_INIT", PROCESS_INIT),
        ("PROCESS_WORKER", PROCESS_WORKER),
        ("CLERK", CLERK),
        ("PROCESS_CLERK", PROCESS_CLERK),
    ],
)
def test_the_steps_of_the_jail_stand_there_in_their_order(name: str, steps: list[Step]) -> None:
    assert first_column(f"step of `{name}`") == [step for step, _ in steps]


def test_a_first_worker_does_what_the_page_says_before_its_own_steps() -> None:
    views = {"jailed": VIEW, "confined": FOLDER, "process": FOLDER}
    for tier, recipe in RECIPES.items():
        assert [*recipe.first_worker] == [*views[tier], *recipe.worker, *TOGETHER]
