"""docs/trajectories.md says what the file has: each kind, each field."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from repl_env.rlm import Trajectory, TrajectoryWriter
from repl_env.rlm.trajectory_events import COMPLETION, CONTEXT, KINDS, SPENT, TASK, TRACE, USAGE
from tests.repl_env.rlm.trajectory.account import account

PAGE = (Path(__file__).parents[4] / "docs" / "trajectories.md").read_text(encoding="utf-8")
PARTS = {
    "context": CONTEXT, "completion": COMPLETION, "usage": USAGE, "tokens": TRACE, "spent": SPENT,
    "task": TASK,
}  # fmt: skip


def documented(heading: str) -> list[str]:
    """The first column of the table of this heading."""
    _, table = PAGE.split(f"\n| {heading} |")
    return re.findall(r"^\| `(\w+)` \|", table.partition("\n\n")[0], re.MULTILINE)


@pytest.fixture
def lines(tmp_path):
    with TrajectoryWriter(tmp_path / "run.jsonl") as writer:
        for event in account():
            writer(event)
    return [json.loads(line) for line in (tmp_path / "run.jsonl").read_bytes().splitlines()]


def test_the_fields_of_the_header_are_those_of_the_page(lines):
    assert list(lines[0]) == documented("field of the header")


@pytest.mark.parametrize("kind", KINDS)
def test_the_fields_of_each_kind_are_those_of_the_page(lines, kind):
    written = [list(line) for line in lines[1:] if line["event"] == kind]

    assert written
    assert all(fields == documented(f"field of `{kind}`") for fields in written)


@pytest.mark.parametrize("part", PARTS)
def test_the_fields_of_each_part_are_those_of_the_page(part):
    assert list(PARTS[part].readers) == documented(f"field of `{part}`")


def test_the_fields_of_samples_are_those_of_the_page():
    (first, *others) = map(list, Trajectory.of(account()).samples())

    assert first == documented("field of a sample")
    assert all(each == first for each in others)


def test_the_page_has_no_other_kinds():
    told = re.findall(r"^\| field of `(\w+)` \|", PAGE, re.MULTILINE)

    assert sorted(told) == sorted([*KINDS, *PARTS])
