"""Which session gives way, by the CPU time that it used lately; on a clock of the test's own."""

from __future__ import annotations

import pytest

from repl_sandbox.fair_share.cpu_credit import A_CELL, OWED, SAVED, CpuCredit


def test_a_client_of_short_steps_keeps_it_for_ever() -> None:
    session = CpuCredit(0.0)
    used = 0.0
    for second in range(1, 1000):
        used += 25 * 0.002
        # As is seen of it on a busy machine: always amid a step.
        assert session.charge(used, 25, second, wants=True)


@pytest.mark.parametrize("share", [1.0, 0.1, 0.02])
def test_who_never_rests_loses_it_however_little_it_gets(share: float) -> None:
    session = CpuCredit(0.0)
    looks = [session.charge(n * 0.05 * share, 0, n * 0.05, wants=True) for n in range(1, 200)]
    assert looks[0] == (share < 1)
    assert not looks[-1]
    assert not any(looks[looks.index(False) :])


def test_it_is_back_after_a_rest_however_long_it_was_gone() -> None:
    session = CpuCredit(0.0)
    for second in range(1, 1000):
        assert not session.charge(float(second), 0, second, wants=True)
    looks = [session.charge(999.0, 0, 999 + n, wants=False) for n in range(1, 10)]
    assert not looks[0]
    assert looks[-1]


def test_what_is_saved_and_owed_is_bounded() -> None:
    session = CpuCredit(0.0)
    assert session.charge(0.0, 10**6, 1e6, wants=False)
    assert not session.charge(SAVED + 0.01, 0, 1e6, wants=True)
    cells = round(2 * OWED / A_CELL) + 1
    assert session.charge(SAVED + 0.01, cells, 1e6, wants=True)


def test_cpu_time_that_is_lost_is_nobodys_gain() -> None:
    """A child that nobody waited for takes what it used with it."""
    session = CpuCredit(0.0)
    assert not session.charge(1.0, 0, 0.1, wants=True)
    assert not session.charge(0.0, 0, 0.2, wants=True)


def test_one_look_that_finds_it_wanting_does_not_stand_for_half_a_minute() -> None:
    session = CpuCredit(0.0)
    assert session.charge(0.5, 0, 30.0, wants=True)
    assert not session.charge(1.0, 0, 60.0, wants=True)
