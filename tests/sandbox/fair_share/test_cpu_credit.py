"""CPU credit: sessions are throttled by their recent CPU time, on a clock of the test."""

from __future__ import annotations

import pytest

from repl_sandbox.host.fair_share import A_CELL, MAX_CREDIT, MAX_DEBT, CpuCredit


def test_a_client_of_short_steps_keeps_its_credit() -> None:
    session = CpuCredit(0.0)
    used = 0.0
    for second in range(1, 1000):
        used += 25 * 0.002
        # As observed on a busy machine: always during a step.
        assert session.charge(used, 25, second, wants=True)


@pytest.mark.parametrize("share", [1.0, 0.1, 0.02])
def test_a_client_that_never_rests_loses_its_credit(share: float) -> None:
    session = CpuCredit(0.0)
    looks = [session.charge(n * 0.05 * share, 0, n * 0.05, wants=True) for n in range(1, 200)]
    assert looks[0] == (share < 1)
    assert not looks[-1]
    assert not any(looks[looks.index(False) :])


def test_credit_is_back_after_a_rest() -> None:
    session = CpuCredit(0.0)
    for second in range(1, 1000):
        assert not session.charge(float(second), 0, second, wants=True)
    looks = [session.charge(999.0, 0, 999 + n, wants=False) for n in range(1, 10)]
    assert not looks[0]
    assert looks[-1]


def test_credit_and_debt_are_bounded() -> None:
    session = CpuCredit(0.0)
    assert session.charge(0.0, 10**6, 1e6, wants=False)
    assert not session.charge(MAX_CREDIT + 0.01, 0, 1e6, wants=True)
    cells = round(2 * MAX_DEBT / A_CELL) + 1
    assert session.charge(MAX_CREDIT + 0.01, cells, 1e6, wants=True)


def test_lost_cpu_time_is_credited_to_no_client() -> None:
    """The CPU time of a child that was not waited for is lost."""
    session = CpuCredit(0.0)
    assert not session.charge(1.0, 0, 0.1, wants=True)
    assert not session.charge(0.0, 0, 0.2, wants=True)


def test_one_low_measurement_does_not_last_for_half_a_minute() -> None:
    session = CpuCredit(0.0)
    assert session.charge(0.5, 0, 30.0, wants=True)
    assert not session.charge(1.0, 0, 60.0, wants=True)
