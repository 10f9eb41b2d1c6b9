"""The gate: never more inside than the limit, first come first served, nothing is left behind."""

import asyncio
import gc
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from repl_env.rlm import REQUESTS, RequestGate
from tests.waiting import comes_to


class Inside:
    """The current and the largest number of concurrent requests."""

    def __init__(self):
        self.now = self.most = self.ever = 0
        self._lock = threading.Lock()

    def __enter__(self):
        with self._lock:
            self.now += 1
            self.ever += 1
            self.most = max(self.most, self.now)

    def __exit__(self, *_):
        with self._lock:
            self.now -= 1


async def hold(gate, leave, entered=None, name=None):
    async with gate:
        if entered is not None:
            entered.append(name)
        await leave.wait()


async def settled():
    """Every task of this loop has come as far as it can."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_the_number_of_concurrent_requests_is_limited():
    gate, leave = RequestGate(2), asyncio.Event()
    tasks = [asyncio.create_task(hold(gate, leave)) for _ in range(5)]
    await settled()

    assert (gate.limit, gate.in_flight, gate.waiting) == (2, 2, 3)

    leave.set()
    await asyncio.gather(*tasks)
    assert (gate.in_flight, gate.waiting) == (0, 0)


async def test_first_come_first_served():
    gate, leaves, entered = RequestGate(1), [asyncio.Event() for _ in range(6)], []
    tasks = [
        asyncio.create_task(hold(gate, leave, entered, name)) for name, leave in enumerate(leaves)
    ]
    for number, leave in enumerate(leaves):
        await settled()
        assert entered == [*range(number + 1)]
        leave.set()
    await asyncio.gather(*tasks)


async def test_a_newcomer_does_not_take_a_slot_that_was_handed_over():
    gate, leave, entered = RequestGate(1), asyncio.Event(), []
    async with gate:
        waiter = asyncio.create_task(hold(gate, leave, entered, "waiter"))
        await settled()
    # The slot is free, and the waiter has not run yet.
    newcomer = asyncio.create_task(hold(gate, leave, entered, "newcomer"))
    await settled()

    assert entered == ["waiter"]
    assert (gate.in_flight, gate.waiting) == (1, 1)
    leave.set()
    await asyncio.gather(waiter, newcomer)


async def test_the_limit_can_be_changed():
    gate, leave = RequestGate(1), asyncio.Event()
    tasks = [asyncio.create_task(hold(gate, leave)) for _ in range(5)]
    await settled()

    gate.limit = 3
    assert (gate.in_flight, gate.waiting) == (3, 2)
    gate.limit = 1
    assert (gate.in_flight, gate.waiting) == (3, 2)
    tasks[0].cancel()
    await settled()
    assert (gate.in_flight, gate.waiting) == (2, 2)

    leave.set()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert (gate.in_flight, gate.waiting) == (0, 0)


async def test_a_waiter_that_is_cancelled_leaves_nothing_behind():
    gate, leave = RequestGate(1), asyncio.Event()
    tasks = [asyncio.create_task(hold(gate, leave)) for _ in range(3)]
    await settled()

    tasks[1].cancel()
    await settled()

    assert (gate.in_flight, gate.waiting) == (1, 1)
    leave.set()
    await tasks[2]
    assert gate.in_flight == 0


async def test_a_waiter_cancelled_as_it_gets_a_slot_passes_the_slot_on():
    gate, leave, entered = RequestGate(1), asyncio.Event(), []
    async with gate:
        tasks = [asyncio.create_task(hold(gate, leave, entered, name)) for name in range(2)]
        await settled()
    tasks[0].cancel()
    await settled()

    assert entered == [1]
    assert (gate.in_flight, gate.waiting) == (1, 0)
    leave.set()
    await tasks[1]
    assert gate.in_flight == 0


async def test_an_exception_frees_the_slot():
    gate = RequestGate(1)
    with pytest.raises(KeyError):
        async with gate:
            raise KeyError
    assert gate.in_flight == 0


@pytest.mark.parametrize(
    ("error", "limit"), [(TypeError, 1.0), (TypeError, True), (TypeError, None), (ValueError, 0)]
)
def test_a_limit_is_an_int_of_at_least_one(error, limit):
    with pytest.raises(error, match="limit"):
        RequestGate(limit)
    gate = RequestGate(1)
    with pytest.raises(error, match="limit"):
        gate.limit = limit
    assert gate.limit == 1


def test_the_process_has_one_gate():
    # Leftovers of other tests are about to end.
    state = comes_to(lambda: (REQUESTS.limit, REQUESTS.in_flight, REQUESTS.waiting), (64, 0, 0))
    assert state == (64, 0, 0)


@pytest.fixture
def hasty_threads():
    """Threads that take turns as often as they can, so that what is not locked shows."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("hasty_threads")
def test_the_limit_applies_to_the_loops_of_all_threads_together():
    gate, inside = RequestGate(5), Inside()

    async def one(number):
        for _ in range(20):
            async with gate:
                with inside:
                    await asyncio.sleep(0)
                    assert gate.in_flight <= 5
            if number % 4 == 0:
                await asyncio.sleep(0)

    def thread(_):
        async def several():
            await asyncio.gather(*(one(number) for number in range(8)))

        asyncio.run(several())

    with ThreadPoolExecutor(12) as pool:
        list(pool.map(thread, range(12)))

    assert (inside.most, inside.ever) == (5, 12 * 8 * 20)
    assert (gate.in_flight, gate.waiting) == (0, 0)


@pytest.mark.usefixtures("hasty_threads")
def test_cancellations_in_many_threads_lose_no_slot():
    gate, inside = RequestGate(3), Inside()

    async def one():
        async with gate:
            with inside:
                await asyncio.sleep(0)

    async def several(seed):
        for round_ in range(30):
            tasks = [asyncio.create_task(one()) for _ in range(6)]
            for _ in range((seed + round_) % 4):
                await asyncio.sleep(0)
            for task in tasks[(seed + round_) % 3 :: 2]:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda seed: asyncio.run(several(seed)), range(8)))

    assert inside.most <= 3
    assert (gate.in_flight, gate.waiting) == (0, 0)


def test_a_closed_event_loop_blocks_no_other_waiter():
    gate, entered = RequestGate(1), []

    async def come(leave):
        task = asyncio.create_task(hold(gate, leave, entered, "forgotten"))
        await settled()
        return task

    async def main():
        leave = asyncio.Event()
        async with gate:
            loop = asyncio.new_event_loop()
            forgotten = await asyncio.to_thread(loop.run_until_complete, come(leave))
            loop.close()
            waiter = asyncio.create_task(hold(gate, leave, entered, "waiter"))
            await settled()
            assert gate.waiting == 2
        await settled()
        assert entered == ["waiter"]
        leave.set()
        await waiter
        return forgotten

    forgotten = asyncio.run(main())
    assert not forgotten.done()
    assert (gate.in_flight, gate.waiting) == (0, 0)


def test_a_garbage_collected_coroutine_frees_its_slot():
    gate, loop = RequestGate(1), asyncio.new_event_loop()

    async def come():
        task = asyncio.create_task(hold(gate, asyncio.Event()))
        await settled()
        return task

    task = loop.run_until_complete(come())
    assert gate.in_flight == 1
    loop.close()
    del task
    gc.collect()

    assert gate.in_flight == 0
