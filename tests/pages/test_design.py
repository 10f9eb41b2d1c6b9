"""docs/design.md and docs/design/ agree with the code.

The steps of the jail stand in their order; each kind of failure has a row; the entry page links
every page; every file that a page names exists. No test file is longer than a reader takes in.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from repl_env.episode.observations import KIND_BY_EXCEPTION, KIND_BY_REASON
from repl_sandbox.jail.recipe import (
    CONFINED_INIT,
    CONFINED_WORKER,
    FILE_HELPER,
    FOLDER,
    INIT,
    PROCESS_FILE_HELPER,
    PROCESS_INIT,
    PROCESS_WORKER,
    RECIPES,
    SPAWN_STEPS,
    TELL_WORKER,
    VIEW,
    WAIT_FOR_INIT,
    WORKER,
)
from repl_sandbox.jail.steps import Step

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
ENTRY = (DOCS / "design.md").read_text(encoding="utf-8")
PAGES = {page.name: page.read_text(encoding="utf-8") for page in (DOCS / "design").glob("*.md")}
DESIGN = "\n".join((ENTRY, *PAGES.values()))
PACKAGES = ["sandbox/repl_sandbox", "repl_env", "server/repl_server"]
# The files that a page may name, by the end of their path.
FILES = [
    f"/{file.relative_to(ROOT)}"
    for folder in (*PACKAGES, "benchmarks", "tests")
    for file in (ROOT / folder).rglob("*.py")
] + ["/hatch_build.py"]


def first_columns(header: str) -> list[list[str]]:
    """The first cells of the rows of each table whose first heading is `header`."""
    _, *tables = DESIGN.split(f"\n| {header} |")
    rows = [table.partition("\n\n")[0].splitlines()[2:] for table in tables]
    return [[row.split("|")[1].strip() for row in table] for table in rows]


def first_column(header: str) -> list[str]:
    """The same of the only table."""
    (column,) = first_columns(header)
    return column


def test_the_entry_page_lists_each_page_once() -> None:
    rows = re.findall(r"^\| \[([\w-]+\.md)\]\(design/([\w-]+\.md)\) \|", ENTRY, re.MULTILINE)

    assert len(rows) > 20
    assert all(text == target for text, target in rows)
    assert sorted(text for text, _ in rows) == sorted(PAGES)


@pytest.mark.parametrize(
    ("name", "steps"),
    [
        ("SPAWN_STEPS", SPAWN_STEPS),
        ("INIT", INIT),
        ("VIEW", VIEW),
        ("WORKER", WORKER),
        ("WAIT_FOR_INIT", WAIT_FOR_INIT),
        ("TELL_WORKER", TELL_WORKER),
        ("CONFINED_INIT", CONFINED_INIT),
        ("FOLDER", FOLDER),
        ("CONFINED_WORKER", CONFINED_WORKER),
        ("PROCESS_INIT", PROCESS_INIT),
        ("PROCESS_WORKER", PROCESS_WORKER),
        ("FILE_HELPER", FILE_HELPER),
        ("PROCESS_FILE_HELPER", PROCESS_FILE_HELPER),
    ],
)
def test_the_page_has_the_steps_of_the_jail_in_order(name: str, steps: list[Step]) -> None:
    assert first_column(f"step of `{name}`") == [step.name for step in steps]


def test_the_steps_of_a_first_worker_are_those_of_the_page() -> None:
    views = {"jailed": VIEW, "confined": FOLDER, "alone": FOLDER, "process": FOLDER}
    for tier, recipe in RECIPES.items():
        assert [*recipe.first_worker] == [*views[tier], *recipe.worker, *WAIT_FOR_INIT]


def test_each_kind_of_failure_of_a_cell_has_a_row() -> None:
    kinds = {*KIND_BY_EXCEPTION.values(), *KIND_BY_REASON.values(), "timeout"}
    shown = {kind for cell in first_column("kind") for kind in re.findall(r"`(\w+)`", cell)}

    assert kinds - shown == set()


@pytest.mark.parametrize("page", sorted(PAGES))
def test_a_file_that_a_page_names_exists(page: str) -> None:
    names = re.findall(r"`([\w/.]+\.py)`", PAGES[page])
    assert [name for name in names if not any(file.endswith(f"/{name}") for file in FILES)] == []


def test_no_test_file_exceeds_700_lines() -> None:
    lines = {
        str(file.relative_to(ROOT)): file.read_text(encoding="utf-8").count("\n")
        for file in (ROOT / "tests").rglob("*.py")
    }
    assert len(lines) > 300
    assert {file: count for file, count in lines.items() if count > 700} == {}
