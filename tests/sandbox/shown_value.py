"""The value that a cell shows."""

from __future__ import annotations

from repl_sandbox import Finished, Session


def value(session: Session, code: str) -> str | None:
    """The displayed value of a cell, which has to finish."""
    outcome = session.run(code)
    assert isinstance(outcome, Finished), outcome
    return outcome.value
