"""Data walks through few files: the ceilings of `benchmarks/flow.py`, which only fall."""

from __future__ import annotations

import pytest

from benchmarks.flow import Way, measure

# Calls, files and changes of file.
CEILINGS = {
    "LocalREPLEnv.execute('x = 1')": Way(125, 26, 75),
    "LocalREPLEnv.execute('print(x)')": Way(155, 28, 85),
    "LocalREPLEnv.reset": Way(475, 53, 230),
    "Session.run('x = 1')": Way(60, 12, 36),
    "Sandbox.session()": Way(220, 30, 105),
    "a WebSocket step on our server": Way(215, 37, 112),
}


@pytest.fixture(scope="module")
def ways() -> dict[str, Way]:
    return measure()


@pytest.mark.parametrize("operation", CEILINGS)
def test_an_operation_walks_through_few_files(operation: str, ways: dict[str, Way]) -> None:
    way, ceiling = ways[operation], CEILINGS[operation]
    assert all(one <= other for one, other in zip(way, ceiling, strict=True)), (way, ceiling)


def test_every_operation_has_a_ceiling(ways: dict[str, Way]) -> None:
    assert ways.keys() == CEILINGS.keys()
