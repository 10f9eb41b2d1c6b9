"""`inspect.getsource` of classes that cells define."""

from __future__ import annotations

import pytest

from repl_sandbox import Finished, Raised, Session

METHOD = "class A:\n    def f(self):\n        return 1\n"
PLAIN = "class A:\n    x: int = 1\n"
BARE = "class A:\n    x = 1\n"


def source(session: Session, name: str = "A") -> object:
    outcome = session.run(f"import inspect\nsource = inspect.getsource({name})")
    assert isinstance(outcome, Finished), outcome
    return session.get("source")


@pytest.mark.parametrize(
    "text",
    [
        METHOD,
        PLAIN,
        "@dataclass\nclass A:\n    x: int = 1\n",
        "class A:\n    @property\n    def f(self): return 1\n",
        "class A(Exception): pass\n",
    ],
)
def test_a_class_of_a_cell_has_its_source(session: Session, text: str) -> None:
    session.run(f"from dataclasses import dataclass\nx = 1\n{text}y = 2")
    session.run("class B:\n    pass")
    assert source(session) == text


def test_a_class_within_others_has_its_source(session: Session) -> None:
    inner = "class O:\n    class A: x = 1\n\ndef f():\n    class A: x = 2\n    return A\n"
    session.run(inner + PLAIN)
    assert source(session, "O.A") == "    class A: x = 1\n"
    assert source(session, "f()") == "    class A: x = 2\n"
    assert source(session) == PLAIN


def test_a_redefined_class_has_the_source_of_its_own_cell(session: Session) -> None:
    session.run(f"{METHOD}old = A")
    session.run(METHOD.replace("1", "2"))
    assert source(session) == METHOD.replace("1", "2")
    assert source(session, "old") == METHOD


@pytest.mark.parametrize("code", ["A = type('A', (), {})", "exec('class A: pass')"])
def test_a_class_that_no_cell_defines_has_no_source(session: Session, code: str) -> None:
    session.run(f"import inspect\n{code}")
    outcome = session.run("inspect.getsource(A)")
    assert isinstance(outcome, Raised)
    assert outcome.error.message == "source code not available"


def test_a_class_that_may_be_from_two_cells_has_no_source(session: Session) -> None:
    session.run("import inspect")
    session.run(f"{BARE}old = A")
    session.run(BARE.replace("1", "2"))
    for name in ("A", "old"):
        outcome = session.run(f"inspect.getsource({name})")
        assert isinstance(outcome, Raised)
        assert outcome.error.message == "source code not available"


def test_sources_of_other_classes_are_unchanged(session: Session) -> None:
    assert "class JSONDecoder" in str(source(session, "__import__('json').JSONDecoder"))
    outcome = session.run("inspect.getsource(int)")
    assert isinstance(outcome, Raised)
    assert outcome.error.type == "TypeError"
