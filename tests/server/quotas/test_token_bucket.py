"""A bucket grants at most its size and its refill, for any sequence of requests."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from repl_server.quotas import TokenBucket
from tests.manual_clock import Clock

AMOUNTS = st.floats(0, 1000, allow_nan=False)
WAITS = st.floats(0, 10_000, allow_nan=False)
RATES = st.floats(0.001, 1000)


@given(AMOUNTS, RATES, st.lists(st.tuples(WAITS, AMOUNTS), max_size=30))
def test_no_more_is_taken_than_size_and_gain(size, rate, asked) -> None:
    clock = Clock()
    bucket = TokenBucket(size, rate, clock)
    took: list[tuple[float, float]] = []
    for pause, amount in asked:
        clock.now += pause
        if not bucket.take(amount):
            took.append((clock.now, amount))

    for begin in range(len(took)):
        for end in range(begin, len(took)):
            window = took[end][0] - took[begin][0]
            total = sum(amount for _, amount in took[begin : end + 1])
            assert total <= size + rate * window + 1e-4


@given(AMOUNTS, RATES, AMOUNTS, AMOUNTS)
def test_waiting_for_the_reported_time_is_enough(size, rate, owed, amount) -> None:
    clock = Clock()
    bucket = TokenBucket(size, rate, clock)
    bucket.owe(owed)
    wait = bucket.wait(amount)

    if math.isfinite(wait):
        clock.now += wait + 1e-6  # what sums of floats lose
        assert bucket.take(amount) == 0
    else:
        assert amount > size


@given(AMOUNTS, RATES, st.lists(st.tuples(WAITS, st.floats(-100, 100)), max_size=30))
def test_the_bucket_never_exceeds_its_size(size, rate, changes) -> None:
    clock = Clock()
    bucket = TokenBucket(size, rate, clock)
    for pause, amount in changes:
        clock.now += pause
        if amount < 0:
            bucket.put_back(-amount)
        else:
            bucket.owe(amount)
        assert bucket.level <= size


def test_an_amount_over_the_size_is_never_available() -> None:
    assert TokenBucket(5, 1, Clock()).take(6) == math.inf


def test_a_bucket_without_refill_never_refills() -> None:
    bucket = TokenBucket(5, 0, Clock())

    assert bucket.take(5) == 0
    assert bucket.take(1) == math.inf


def test_a_refused_amount_is_not_taken() -> None:
    bucket = TokenBucket(5, 1, Clock())
    bucket.take(4)

    assert bucket.take(3) == 2
    assert bucket.level == 1
