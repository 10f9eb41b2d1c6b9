"""Reservations that wait for others to settle, and warnings before a budget ends."""

import asyncio
import gc

import pytest

from repl_env.errors import BudgetExceeded, REPLError
from repl_env.rlm import Budget, Ledger, Price, Spent
from tests.manual_clock import Clock
from tests.repl_env.rlm.budget.ledger_accounts import reserve, reserve_async, settle, waiting


class TestWaiting:
    async def test_a_reservation_waits_only_while_others_hold_the_missing_amount(self):
        root = Ledger(Budget(output_tokens=50)).root
        first = reserve(root, 40)

        second = await waiting(reserve_async(root, 30))
        assert not second.done()
        settle(first, given=5)

        assert (await second).output_tokens == 30

    async def test_a_reservation_gets_the_rest_once_nothing_is_held(self):
        root = Ledger(Budget(output_tokens=50)).root
        first = reserve(root, 40)

        second = await waiting(reserve_async(root, 30))
        settle(first, given=35)

        assert (await second).output_tokens == 15

    async def test_a_waiting_reservation_fails_when_the_amount_is_spent(self):
        root = Ledger(Budget(output_tokens=50)).root
        first = reserve(root, 50)

        second = await waiting(reserve_async(root, 30))
        settle(first, given=50)

        with pytest.raises(BudgetExceeded) as refused:
            await second
        assert refused.value.field == "output_tokens"

    @pytest.mark.parametrize(
        ("budget", "asked"),
        [
            (Budget(input_tokens=100), {"input_tokens": 60}),
            (Budget(usd=0.0001), {"input_tokens": 60, "model": "m"}),
        ],
    )
    async def test_the_input_of_a_request_is_reserved_too(self, budget, asked):
        root = Ledger(budget, prices={"m": Price(1, 1)}).root
        first = reserve(root, 1, **asked)

        second = await waiting(reserve_async(root, 1, **asked))
        assert not second.done()
        settle(first, taken=20)

        assert (await second).output_tokens == 1

    async def test_reservations_of_calls_never_wait_because_failed_calls_count(self):
        root = Ledger(Budget(calls=1)).root
        first = reserve(root, 1)

        with pytest.raises(BudgetExceeded, match="reserved") as refused:
            await reserve_async(root, 1)
        assert refused.value.field == "calls"
        first.fail()

    async def test_reservations_are_served_in_order_without_starvation(self):
        root = Ledger(Budget(output_tokens=50)).root
        held = reserve(root, 20)

        much = await waiting(reserve_async(root, 50))
        little = await waiting(reserve_async(root, 5))
        assert not much.done() and not little.done()
        held.fail()

        reservation = await much
        assert not little.done()
        reservation.fail()
        assert (await little).output_tokens == 5

    async def test_a_cancelled_reservation_makes_way(self):
        root = Ledger(Budget(output_tokens=50)).root
        held = reserve(root, 20)
        much = await waiting(reserve_async(root, 50))
        little = await waiting(reserve_async(root, 5))

        much.cancel()

        assert (await little).output_tokens == 5
        assert root.left().output_tokens == 25
        held.fail()

    async def test_a_reservation_cancelled_as_it_is_granted_is_returned(self):
        root = Ledger(Budget(output_tokens=50)).root
        held = reserve(root, 50)
        waiter = await waiting(reserve_async(root, 30))

        held.fail()
        waiter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiter

        assert root.left().output_tokens == 50
        assert root.total == Spent(calls=1, failed_calls=1)

    async def test_the_time_limit_of_the_tree_ends_the_waiting(self):
        root = Ledger(Budget(seconds=0.02, output_tokens=50), clock=Clock()).root
        held = reserve(root, 50)

        with pytest.raises(BudgetExceeded) as refused:
            await reserve_async(root, 30)

        assert refused.value.field == "seconds"
        held.fail()
        assert root.left().output_tokens == 50

    async def test_the_end_of_the_run_ends_the_waiting(self):
        root = Ledger(Budget(output_tokens=50)).root
        held = reserve(root, 50)
        first, child = await waiting(reserve_async(root, 9)), root.open_child()
        second = await waiting(reserve_async(child, 9))

        child.close()

        with pytest.raises(REPLError, match="over"):
            await second
        held.fail()
        assert (await first).output_tokens == 9

    def test_a_closed_event_loop_blocks_no_other_waiter(self):
        root = Ledger(Budget(output_tokens=50)).root
        held = reserve(root, 50)
        loop = asyncio.new_event_loop()
        forgotten = loop.run_until_complete(waiting(reserve_async(root, 40)))
        loop.close()

        async def next_one():
            task = await waiting(reserve_async(root, 30))
            held.fail()
            return await task

        assert asyncio.run(next_one()).output_tokens == 30
        assert root.left().output_tokens == 20
        assert not forgotten.done()

    def test_the_reservation_of_a_garbage_collected_coroutine_is_free_again(self):
        root = Ledger(Budget(output_tokens=50)).root
        held = reserve(root, 50)
        loop = asyncio.new_event_loop()
        forgotten = loop.run_until_complete(waiting(reserve_async(root, 40)))
        held.fail()  # hands it over, to a loop that does not run any more
        assert root.left().output_tokens == 10

        loop.close()
        del forgotten
        gc.collect()

        assert root.left().output_tokens == 50


class TestWarnings:
    def test_a_field_is_named_once_at_80_percent_and_once_at_95(self):
        root = Ledger(Budget(calls=200)).root
        said = []

        for _ in range(200):
            reserve(root).fail()
            said.append(root.warning())

        assert said[159] == "Budget: 160 of 200 calls are used."
        assert said[189] == "Budget: 190 of 200 calls are used."
        assert [number for number, each in enumerate(said) if each] == [159, 189]

    def test_each_run_is_warned(self):
        root = Ledger(Budget(calls=10)).root
        child = root.open_child()
        for _ in range(8):
            reserve(child).fail()

        assert child.warning() == root.warning() == "Budget: 8 of 10 calls are used."
        assert child.warning() is None is root.warning()

    def test_every_field_has_a_warning_text(self):
        clock = Clock()
        budget = Budget(10, 1000, 2000, usd=1, seconds=60, cpu_seconds=2.5, children=1)
        root = Ledger(budget, prices={"m": Price(1000, 0)}, clock=clock).root
        child = root.open_child()
        for _ in range(9):
            settle(reserve(child, 10, model="m"), taken=100, given=200)
        child.spend_cpu(2.25)
        clock.now += 54

        assert root.warning() == (
            "Budget: 9 of 10 calls are used; 900 of 1,000 input tokens are used; "
            "1,800 of 2,000 output tokens are used; $0.9 of $1 are spent; "
            "54 of 60 seconds have passed; 2.25 of 2.5 seconds of CPU time are used; "
            "1 of 1 child runs were started."
        )

    def test_thresholds_passed_together_are_warned_of_once(self):
        root = Ledger(Budget(output_tokens=10)).root
        settle(reserve(root, 10), given=10)

        assert root.warning() == "Budget: 10 of 10 output tokens are used."
        assert root.warning() is None

    def test_unlimited_fields_are_never_warned_of(self):
        assert Ledger(Budget(children=0, usd=0)).root.warning() is None
