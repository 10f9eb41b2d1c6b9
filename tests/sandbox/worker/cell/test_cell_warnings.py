"""Warnings of cells: shown in each cell, and attributed to the cell, not to files of the engine."""

from __future__ import annotations

import pytest

from repl_sandbox import Finished, Session


def told(session: Session, code: str) -> str:
    outcome = session.run(code)
    assert isinstance(outcome, Finished), outcome
    return outcome.stderr


def test_a_cell_warns_though_an_earlier_one_did_in_the_same_words_and_line(
    session: Session,
) -> None:
    for number in (1, 2):
        stderr = told(session, f"import warnings\nx = {number}\nwarnings.warn('careful')")
        assert stderr == f"<cell {number}>:3: UserWarning: careful\n  warnings.warn('careful')\n"


def test_within_a_cell_a_line_warns_once(session: Session) -> None:
    stderr = told(session, "import warnings\nfor _ in range(3): warnings.warn('careful')")
    assert stderr.count("careful\n") == 1


def test_warning_filters_of_a_cell_apply_to_later_cells(session: Session) -> None:
    told(session, "import warnings\nwarnings.simplefilter('once')")
    assert "careful" in told(session, "warnings.warn('careful')")
    assert told(session, "warnings.warn('careful')") == ""
    told(session, "warnings.showwarning = lambda message, *rest: print(message, 'shown')")
    assert session.run("warnings.warn('other')").stdout == "other shown\n"


@pytest.mark.parametrize("depth", [2, 3])
def test_a_warning_about_the_caller_of_the_cell_names_its_line(
    session: Session, depth: int
) -> None:
    code = f"import warnings\nx = 1\nwarnings.warn('careful', stacklevel={depth})\n"
    for number in (1, 2):
        assert told(session, code).startswith(f"<cell {number}>:3: UserWarning: careful\n")


def test_a_coroutine_that_is_not_awaited_names_the_cell_after_which_it_was_gone(
    session: Session,
) -> None:
    text = "RuntimeWarning: coroutine 'f' was never awaited\n"
    assert told(session, "async def f(): pass\nx = f()\ndel x") == f"<cell 1>:3: {text}  del x\n"
    told(session, "f()")  # displayed, and held by `_`
    for number in (3, 4):
        assert told(session, "x = 1\nf()\n\n") == f"<cell {number}>:2: {text}  f()\n"


def test_tracemalloc_shows_the_origin_of_an_unclosed_object(session: Session) -> None:
    told(session, "import tracemalloc\ntracemalloc.start()\nasync def f(): pass\nx = f()")
    stderr = told(session, "del x")
    assert "Object allocated at" in stderr
    assert 'File "<cell 1>", lineno 4' in stderr
