"""Waiting ends when it has come about, and fails when it does not."""

import pytest

from tests import waiting
from tests.waiting import comes_to, eventually, until


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(waiting, "PATIENCE", 0.01)


def counting(to):
    """A condition that is true when it is asked for the time `to`; its value is that."""
    count = iter(range(1, to + 1))
    return lambda: (number := next(count)) == to and number


async def test_a_late_condition_is_waited_for():
    assert eventually(counting(3)) == 3
    assert comes_to(counting(3), 3) == 3
    await until(counting(3))


async def test_a_condition_that_never_holds_is_an_error(impatient):
    with pytest.raises(AssertionError, match="did not come about"):
        eventually(lambda: False)
    with pytest.raises(AssertionError, match="seen: 7"):
        eventually(lambda: False, lambda: "seen: 7")
    with pytest.raises(AssertionError, match="did not come about"):
        await until(lambda: False)
    assert comes_to(lambda: 7, 8) == 7


def test_the_condition_is_checked_after_the_deadline(monkeypatch):
    monkeypatch.setattr(waiting, "PATIENCE", 0.0)
    assert eventually(lambda: True)
    assert comes_to(counting(2), 2) == 2
