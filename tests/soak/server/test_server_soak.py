"""A short soak of a server, with the checks of the long one: `make soak-server`."""

from __future__ import annotations

import pytest

from tests.soak.server.soak import Load, soak


@pytest.mark.parametrize("seconds", [5, pytest.param(20, marks=pytest.mark.slow)])
def test_a_server_survives_dying_clients_and_abusive_code(seconds: int) -> None:
    wanted = ("cut_amid", "vanish")
    seed = "the same each time"
    report = soak(Load(seconds=seconds, guests=6, abusers=4, seed=seed, wanted=wanted))

    assert report.faults == []
    assert report.abused and all(report.done[name] for name in wanted)
    assert report.calm["steps"] and report.beside["steps"]
