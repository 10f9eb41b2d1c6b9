"""The ledger: the budget is never exceeded, and the totals of all runs add up."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from repl_env.errors import BudgetExceeded, REPLError
from repl_env.rlm import Budget, Ledger, Price, Spent
from tests.manual_clock import Clock
from tests.repl_env.rlm.budget.ledger_accounts import (
    PICO,
    UNLIMITED,
    assert_adds_up,
    is_below,
    reserve,
    reserve_async,
    settle,
)


class TestReserving:
    def test_reserved_amounts_are_not_free_for_others(self):
        root = Ledger(Budget(calls=3, input_tokens=100, output_tokens=50)).root

        reservation = reserve(root, 30, input_tokens=60)

        assert reservation.output_tokens == 30
        left = root.left()
        assert (left.calls, left.input_tokens, left.output_tokens) == (2, 40, 20)
        assert root.total == Spent()

    def test_unused_reservations_are_free_again(self):
        root = Ledger(Budget(calls=3, input_tokens=100, output_tokens=50)).root

        settle(reserve(root, 30, input_tokens=60), given=10, taken=20)

        left = root.left()
        assert (left.calls, left.input_tokens, left.output_tokens) == (2, 80, 40)

    @pytest.mark.parametrize(("asks", "granted"), [(7, 7), (50, 50), (80, 50), (None, 50)])
    def test_an_answer_may_have_what_is_asked_for_or_what_is_left(self, asks, granted):
        assert reserve(Ledger(Budget(output_tokens=50)).root, asks).output_tokens == granted

    @pytest.mark.parametrize("asks", [None, 12])
    def test_without_a_limit_an_answer_may_have_what_is_asked_for(self, asks):
        assert reserve(Ledger(UNLIMITED).root, asks).output_tokens == asks

    @pytest.mark.parametrize(
        ("field", "budget"),
        [
            ("calls", Budget(calls=0)),
            ("input_tokens", Budget(input_tokens=9)),
            ("output_tokens", Budget(output_tokens=0)),
            ("seconds", Budget(seconds=0)),
            ("cpu_seconds", Budget(cpu_seconds=0)),
            ("usd", Budget(usd=0.000009)),
        ],
    )
    async def test_a_reservation_over_the_budget_is_refused_by_name_and_spends_nothing(
        self, field, budget
    ):
        root = Ledger(budget, prices={"m": Price(1, 1)}).root

        with pytest.raises(BudgetExceeded) as refused:
            reserve(root, 1, input_tokens=10, model="m")
        assert refused.value.field == field
        with pytest.raises(BudgetExceeded) as refused:
            await reserve_async(root, 1, input_tokens=10, model="m")
        assert refused.value.field == field
        assert root.total == Spent()

    @pytest.mark.parametrize(
        ("error", "arguments", "match"),
        [
            (TypeError, {"input_tokens": 1.5}, "input_tokens"),
            (TypeError, {"input_tokens": True}, "input_tokens"),
            (ValueError, {"input_tokens": -1}, "input_tokens"),
            (TypeError, {"output_tokens": "9"}, "output_tokens"),
            (ValueError, {"output_tokens": 0}, "output_tokens"),
        ],
    )
    def test_a_wrong_argument_is_refused_by_name(self, error, arguments, match):
        arguments = {"model": None, "input_tokens": 0, "output_tokens": 1} | arguments
        with pytest.raises(error, match=match):
            Ledger().root.reserve(**arguments)

    def test_a_failed_call_counts_and_takes_no_tokens(self):
        root = Ledger(Budget(calls=2, output_tokens=50)).root

        with reserve(root, 30):
            pass
        reserve(root, 30).fail()

        assert root.total == Spent(calls=2, failed_calls=2)
        assert root.left().output_tokens == 50

    def test_a_reservation_ends_once(self):
        root = Ledger().root

        with reserve(root, 30) as reservation:
            settle(reservation, given=5)
            reservation.fail()
            settle(reservation, given=5)

        assert root.total == Spent(calls=1, output_tokens=5, unpriced_calls=1)

    @pytest.mark.parametrize("budget", ["100", 100, None])
    def test_a_ledger_needs_a_budget(self, budget):
        with pytest.raises(TypeError, match="budget"):
            Ledger(budget)


class TestReports:
    def test_an_answer_over_its_reservation_is_booked(self):
        root = Ledger(Budget(output_tokens=50)).root

        settle(reserve(root, 30), given=90)

        assert root.total.output_tokens == 90
        assert root.left().output_tokens == 0
        with pytest.raises(BudgetExceeded):
            root.check()

    @pytest.mark.parametrize("report", [None, -1, True, 3.0, "3", 10**15, float("nan")])
    def test_an_invalid_number_counts_as_not_reported(self, report):
        root = Ledger().root

        settle(reserve(root, 30), given=report, taken=4)
        settle(reserve(root, 30), given=5, taken=report)

        total = root.total
        assert (total.input_tokens, total.output_tokens) == (4 + 7, 9 + 5)
        assert total.estimated_tokens == 9 + 7


class TestMoney:
    def test_money_is_counted_exactly(self):
        root = Ledger(UNLIMITED, prices={"m": Price(0.1, 0.3)}).root

        for _ in range(1000):
            settle(reserve(root, model="m"), taken=1, given=1)

        assert root.total.usd == 0.0004
        assert root.total.cost == 0.0004

    def test_an_unknown_price_is_unknown_and_not_zero(self):
        root = Ledger(prices={"m": Price(1, 1)}).root

        settle(reserve(root, model="m"), taken=10**6)
        settle(reserve(root, model="other"), taken=10**6)
        settle(reserve(root), taken=10**6)

        assert (root.total.usd, root.total.unpriced_calls, root.total.cost) == (1.0, 2, None)

    def test_a_limit_in_dollars_refuses_a_model_without_a_price_and_says_how_to_give_one(self):
        root = Ledger(Budget(usd=1.0), prices={"m": Price(1, 1)}).root

        with pytest.raises(BudgetExceeded, match=r"'other'.*prices=.*Price\(") as refused:
            reserve(root, 1, model="other")
        assert refused.value.field == "usd"
        with pytest.raises(BudgetExceeded, match="no name"):
            reserve(root, 1)

    def test_an_answer_may_have_what_can_be_paid_for(self):
        root = Ledger(Budget(usd=0.001), prices={"m": Price(1, 10)}).root

        reservation = reserve(root, input_tokens=100, model="m")

        assert reservation.output_tokens == 90
        assert root.left().usd == 0.0
        with pytest.raises(BudgetExceeded, match="would reserve"):
            reserve(root, 1, model="m")
        settle(reservation, taken=100, given=90)
        assert root.total.usd == 0.001

    def test_a_free_model_fits_into_a_limit_of_zero(self):
        root = Ledger(Budget(usd=0), prices={"local": Price(0, 0), "m": Price(1, 1)}).root

        root.check()
        settle(reserve(root, input_tokens=5, model="local"), taken=5, given=5)

        assert root.total.cost == 0.0
        with pytest.raises(BudgetExceeded):
            reserve(root, 1, input_tokens=5, model="m")

    def test_a_spent_money_budget_ends_a_run_without_free_models(self):
        root = Ledger(Budget(usd=1), prices={"m": Price(1, 1)}).root
        root.check()

        settle(reserve(root, 10, model="m"), taken=10**6)

        with pytest.raises(BudgetExceeded) as refused:
            root.check()
        assert refused.value.field == "usd"

    @pytest.mark.parametrize(
        ("report", "usd", "unpriced"),
        [
            (0.25, 0.25, 0),
            (0, 0.0, 0),
            (None, 0.0, 1),
            (-1.0, 0.0, 1),
            (True, 0.0, 1),
            ("1", 0.0, 1),
            (float("nan"), 0.0, 1),
            (float("inf"), 0.0, 1),
            (10**400, 0.0, 1),
        ],
    )
    def test_an_endpoints_own_price_counts_if_there_is_no_other(self, report, usd, unpriced):
        root = Ledger(prices={"m": Price(1, 1)}).root

        settle(reserve(root, model="other"), usd=report)
        assert (root.total.usd, root.total.unpriced_calls) == (usd, unpriced)

        settle(reserve(root, model="m"), usd=report, given=10**6)
        assert (root.total.usd, root.total.unpriced_calls) == (usd + 1, unpriced)

    def test_the_price_is_that_of_the_model_that_answered_if_it_is_known(self):
        root = Ledger(prices={"m": Price(1, 1), "dear": Price(5, 5)}).root

        settle(reserve(root, model="m"), taken=10**6, price_model="dear")
        settle(reserve(root, model="m"), taken=10**6, price_model="m-2026-01-01")

        assert root.total.usd == 6.0

    @pytest.mark.parametrize(
        ("error", "price"),
        [
            (TypeError, 1.0),
            (TypeError, Price("1", 1)),
            (TypeError, Price(1, True)),
            (ValueError, Price(-1, 1)),
            (ValueError, Price(1, float("nan"))),
            (ValueError, Price(1, float("inf"))),
            (ValueError, Price(10**400, 1)),
        ],
    )
    def test_an_invalid_price_is_refused_by_name(self, error, price):
        with pytest.raises(error, match=r"prices\['m'\]"):
            Ledger(prices={"m": price})


class TestTrees:
    def test_every_account_has_its_own_usage_and_the_total_of_its_descendants(self):
        root = Ledger(prices={"m": Price(1, 1)}).root
        child = root.open_child()
        grandchild, other = child.open_child(), root.open_child()

        settle(reserve(root, model="m"), given=1)
        settle(reserve(child, model="m"), given=2)
        settle(reserve(grandchild, model="m"), given=4)
        other.spend_cpu(0.5)

        assert [each.depth for each in (root, child, grandchild, other)] == [0, 1, 2, 1]
        assert (grandchild.parent, child.parent, root.parent) == (child, root, None)
        assert child.own.output_tokens == 2
        assert child.total.output_tokens == 6
        assert (root.own.output_tokens, root.total.output_tokens) == (1, 7)
        assert (root.own.children, root.total.children, child.total.children) == (2, 3, 1)
        assert root.total.cpu_seconds == 0.5
        assert_adds_up(root.tally())

    def test_a_closed_run_keeps_its_usage(self):
        root = Ledger().root
        child = root.open_child()
        settle(reserve(child), given=2)
        assert (root.open_children, root.total.children) == (1, 1)

        child.close()
        child.close()

        assert (root.open_children, root.total.children) == (0, 1)
        assert root.total.output_tokens == 2

    def test_runs_below_a_closed_run_are_closed(self):
        root = Ledger().root
        child = root.open_child()
        grandchild = child.open_child()

        child.close()
        grandchild.close()

        assert (root.open_children, child.open_children) == (0, 0)
        for late in (grandchild.open_child, lambda: reserve(grandchild), child.open_child):
            with pytest.raises(REPLError, match="over"):
                late()

    def test_a_reservation_that_is_open_at_the_end_of_its_run_failed(self):
        root = Ledger(Budget(output_tokens=50)).root
        child = root.open_child()
        reservation = reserve(child, 30)

        child.close()
        settle(reservation, given=30)

        assert root.total == Spent(calls=1, failed_calls=1, children=1)
        assert root.left().output_tokens == 50

    def test_finished_children_are_counted_too(self):
        root = Ledger(Budget(children=2)).root
        root.open_child().close()
        child = root.open_child()

        for parent in (root, child):
            with pytest.raises(BudgetExceeded) as refused:
                parent.open_child()
            assert refused.value.field == "children"
        assert (root.total.children, root.left().children) == (2, 0)
        root.check()

    def test_cpu_time_over_the_limit_is_booked_too(self):
        root = Ledger(Budget(cpu_seconds=1.0)).root
        child = root.open_child()
        child.close()

        child.spend_cpu(0.1)
        child.spend_cpu(0.2)
        assert root.total.cpu_seconds == 0.3
        assert root.left().cpu_seconds == 0.7
        root.check()

        child.spend_cpu(3)
        assert root.left().cpu_seconds == 0.0
        with pytest.raises(BudgetExceeded) as refused:
            root.check()
        assert refused.value.field == "cpu_seconds"

    @pytest.mark.parametrize(
        ("error", "seconds"),
        [(TypeError, "1"), (TypeError, True), (ValueError, -1), (ValueError, float("nan"))],
    )
    def test_an_invalid_time_is_refused(self, error, seconds):
        with pytest.raises(error, match="seconds"):
            Ledger().root.spend_cpu(seconds)

    def test_wall_time_runs_for_the_whole_tree(self):
        clock = Clock()
        root = Ledger(Budget(seconds=10), clock=clock).root
        child = root.open_child()

        clock.now += 4
        assert (child.seconds_left(), root.left().seconds) == (6.0, 6.0)
        child.check()

        clock.now += 7
        assert child.seconds_left() == 0.0
        with pytest.raises(BudgetExceeded) as refused:
            child.check()
        assert refused.value.field == "seconds"

    def test_without_limits_nothing_is_left_is_none(self):
        left = Ledger(UNLIMITED).root.left()

        assert {getattr(left, name) for name in left.__slots__} == {None}
        left = Ledger().root.left()
        assert (left.calls, left.children) == (200, 100)


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["reserve", "settle", "fail", "child", "close", "cpu"]),
        st.integers(0, 30),
        st.integers(0, 40),
    ),
    max_size=60,
)
LIMITS = st.none() | st.integers(0, 120)


@settings(max_examples=150, deadline=None)
@given(OPERATIONS, LIMITS, LIMITS, st.integers(0, 30), LIMITS, st.integers(0, 6))
def test_spent_and_reserved_never_exceed_the_budget(
    operations, inputs, outputs, calls, micros, children
):
    usd = None if micros is None else micros / 10**6
    budget = Budget(calls, inputs, outputs, usd=usd, children=children)
    root = Ledger(budget, prices={"m": Price(0.37, 1.1)}).root
    accounts, open_ones = [root], []
    for what, one, two in operations:
        account = accounts[one % len(accounts)]
        if what == "reserve":
            try:
                reservation = reserve(account, two or None, input_tokens=one, model="m")
            except REPLError:
                continue
            open_ones.append((account, one, reservation))
        elif what in ("settle", "fail") and open_ones:
            _, bound, reservation = open_ones.pop(one % len(open_ones))
            allowed = reservation.output_tokens
            if what == "fail":
                reservation.fail()
            else:
                given = two if allowed is None else min(two, allowed)
                settle(reservation, taken=min(two, bound), given=given)
        elif what == "child":
            try:
                accounts.append(account.open_child())
            except REPLError:
                continue
        elif what == "close" and account is not root:
            account.close()
            open_ones = [each for each in open_ones if not is_below(each[0], account)]
        elif what == "cpu":
            account.spend_cpu(one / 7)
        assert_accounts_for(root, budget, open_ones)


def assert_accounts_for(root, budget, open_ones):
    total, left = root.total, root.left()
    held_in = sum(bound for _, bound, _ in open_ones)
    held_out = sum(reservation.output_tokens or 0 for *_, reservation in open_ones)
    assert left.calls == budget.calls - total.calls - len(open_ones) >= 0
    assert left.children == budget.children - total.children >= 0
    if budget.input_tokens is not None:
        assert left.input_tokens == budget.input_tokens - total.input_tokens - held_in >= 0
    if budget.output_tokens is not None:
        assert left.output_tokens == budget.output_tokens - total.output_tokens - held_out >= 0
    if budget.usd is not None:
        money = 370_000 * held_in + 1_100_000 * held_out
        spent = 370_000 * total.input_tokens + 1_100_000 * total.output_tokens
        assert round(left.usd * PICO) == round(budget.usd * PICO) - spent - money >= 0
        assert round(total.usd * PICO) == spent
    assert_adds_up(root.tally())


def test_32_threads_with_their_loops_spend_a_budget_exactly():
    """Each thread calls until nothing is left; meanwhile the totals always add up."""
    budget = Budget(calls=None, output_tokens=5000, input_tokens=100_000, children=32)
    root = Ledger(budget, prices={"m": Price(0.1, 0.3)}).root
    done = threading.Event()
    barrier = threading.Barrier(33, timeout=120)

    async def spend(account, number):
        while True:
            try:
                reservation = await reserve_async(account, 1 + number, input_tokens=3, model="m")
            except BudgetExceeded as refused:
                return refused.field
            await asyncio.sleep(0)
            if number % 5 == 4:
                reservation.fail()
                number += 1
            else:
                given = max(1, reservation.output_tokens - number % 2)
                settle(reservation, taken=1, given=given)

    def thread(number):
        account = root.open_child()
        barrier.wait()

        async def several():
            return await asyncio.gather(*(spend(account, number % 7 + one) for one in range(3)))

        fields = asyncio.run(several())
        account.close()
        return fields

    def watch():
        barrier.wait()
        while not done.is_set():
            assert_adds_up(root.tally())
            assert root.total.output_tokens <= 5000

    with ThreadPoolExecutor(33) as pool:
        watching = pool.submit(watch)
        fields = [field for each in pool.map(thread, range(32)) for field in each]
        done.set()
        watching.result()

    assert set(fields) == {"output_tokens"}
    assert root.total.output_tokens == 5000
    assert root.left().output_tokens == 0
    assert root.left().input_tokens == 100_000 - root.total.input_tokens
    assert (root.open_children, root.total.children) == (0, 32)
    assert_adds_up(root.tally())
