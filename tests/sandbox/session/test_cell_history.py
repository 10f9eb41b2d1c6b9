"""The cells that a session can roll back after very many cells."""

from __future__ import annotations

import pytest

from repl_sandbox import Sandbox, SandboxError
from repl_sandbox.session.running_cell import REMEMBERED, CellHistory


def past(cells: int) -> CellHistory:
    made = CellHistory()
    for number in range(1, cells + 1):
        made.add(number)
    return made


def test_there_is_no_state_before_the_first_cell_without_variables_of_the_host() -> None:
    empty, assigned = CellHistory(), CellHistory()
    assigned.assign()
    assert not empty and assigned
    for each in (empty, assigned):
        each.add(1)
    assert (empty.before(1), assigned.before(1)) == (None, 0)
    with pytest.raises(ValueError, match="n=2, but 1 cells have run"):
        empty.before(2)


def test_a_variable_set_after_the_first_cell_makes_no_state_before_it() -> None:
    made = past(1)
    made.assign()
    assert made.before(1) is None


def test_a_rollback_names_the_undone_cells() -> None:
    made = past(5)
    assert made.go_back(3) == (4, 5)
    assert made.go_back(3) is None
    assert made.last == 3


def test_uncounted_cells_are_skipped() -> None:
    made = CellHistory()
    for number in (1, 4, 9):
        made.add(number)
    assert made.before(1) == 4
    assert made.go_back(4) == (9, 9)


def test_the_history_of_many_cells_is_bounded() -> None:
    made = past(REMEMBERED + 10)
    assert made.last == REMEMBERED + 10
    assert made.before(REMEMBERED - 1) == 11
    assert made.before(REMEMBERED) == -1


def test_a_rollback_over_dropped_cells_does_not_reach_the_beginning() -> None:
    made = past(2 * REMEMBERED)
    assert made.go_back(7) == (8, 2 * REMEMBERED)
    assert made
    assert made.last == 7
    assert made.before(1) == -1
    made.add(2 * REMEMBERED + 1)
    assert made.before(1) == 7
    assert made.before(2) == -1


def test_the_beginning_stays_available_after_many_cells() -> None:
    made = past(2 * REMEMBERED)
    made.go_back(0)
    assert not made
    assert made.last == 0


def test_a_branch_has_the_history_of_its_session() -> None:
    made = past(2)
    branch = made.of_branch()
    made.add(3)
    assert branch.before(1) == 1
    assert branch.before(2) == 0


def test_a_session_of_very_many_cells_rolls_back(
    recovering: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("repl_sandbox.session.running_cell.REMEMBERED", 10)
    with recovering.session() as session:
        for number in range(15):
            assert session.run(f"n = {number}").ok
        assert session.run("import os; os._exit(1)").state == "rolled_back"
        assert session.rollback(3) == ()
        assert session.get("n") == 11
        with pytest.raises(SandboxError, match="there is no snapshot from before"):
            session.rollback(3)
