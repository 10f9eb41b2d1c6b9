"""Order of requests while clients make more at once than the processors can serve."""

import asyncio
import contextlib

import pytest

from repl_server.scheduler import RequestScheduler
from tests.manual_clock import Clock
from tests.server.conftest import ask, peer, serving
from tests.waiting import eventually

NEVER = 3600.0


class Place:
    """One request at a time, in a recorded order."""

    def __init__(self, at_once=1, beside=None, longest=NEVER):
        self.clock = Clock()
        self.slots = RequestScheduler(at_once, beside, longest=longest, clock=self.clock)
        self.had = []
        self.tasks = []

    async def occupied(self):
        """Take a slot and return the exit stack that holds the slot."""
        holding = contextlib.AsyncExitStack()
        await holding.enter_async_context(self.slots.slot())
        return holding

    async def pressing(self):
        """A client that never pauses, without saved pauses."""
        slot = self.slots.slot()
        for _ in range(100):
            async with slot:
                pass
        return slot

    async def resting(self):
        """A client that has been idle for long."""
        slot = self.slots.slot()
        slot.rests(self.clock.now - NEVER)
        return slot

    async def asks(self, name, slot):
        """The request waits, or has its slot."""

        async def wait():
            async with slot:
                self.had.append(name)

        self.tasks.append(asyncio.create_task(wait()))
        await asyncio.sleep(0)
        return self.tasks[-1]

    async def over(self):
        """All have been."""
        await asyncio.gather(*self.tasks)
        assert len(self.slots) == 0
        return self.had


async def test_without_contention_no_request_waits():
    place = Place(at_once=2)
    pressing = await place.pressing()
    async with pressing, place.slots.slot():
        assert len(place.slots) == 0


async def test_requests_of_rested_clients_run_before_those_of_busy_ones():
    place = Place()
    flooding = [await place.pressing() for _ in range(20)]
    holding = await place.occupied()
    for number, slot in enumerate(flooding):
        await place.asks(f"flood {number}", slot)
    await place.asks("resting", place.slots.slot())
    await holding.aclose()
    assert await place.over() == ["resting", *(f"flood {number}" for number in range(20))]


async def test_a_busy_client_gets_one_slot_in_nine():
    place = Place()
    flooding = await place.pressing()
    holding = await place.occupied()
    await place.asks("flood", flooding)
    for number in range(20):
        await place.asks(number, place.slots.slot())
    await holding.aclose()
    assert (await place.over()).index("flood") <= 8


async def test_rest_credit_is_used_up_and_regained():
    place = Place()
    one = await place.pressing()
    for rest, rested in ((0.004, False), (0.006, True), (0.003, False)):
        place.clock.now += rest
        flooding = await place.pressing()
        holding = await place.occupied()
        await place.asks("flood", flooding)
        await place.asks("one", one)
        await holding.aclose()
        assert await place.over() == (["one", "flood"] if rested else ["flood", "one"])
        place.had.clear()


async def test_rest_credit_is_bounded():
    place = Place()
    flooding = place.slots.slot()
    place.clock.now += NEVER
    for _ in range(25):
        async with flooding:
            pass
    holding = await place.occupied()
    await place.asks("flood", flooding)
    await place.asks("resting", place.slots.slot())
    await holding.aclose()
    assert await place.over() == ["resting", "flood"]


async def test_a_long_step_frees_its_slot():
    place = Place(longest=0.0)
    holding = await place.occupied()
    await place.asks("next", place.slots.slot())
    assert await place.over() == ["next"]
    await holding.aclose()
    assert len(place.slots) == 0


async def test_a_freed_slot_is_not_freed_twice():
    place = Place(longest=0.5)
    slow = await place.occupied()
    place.clock.now += 1
    waiting = await place.occupied()  # the slow one freed its slot
    await place.asks("next", place.slots.slot())
    await slow.aclose()
    await asyncio.sleep(0)
    assert place.had == []
    await waiting.aclose()
    assert await place.over() == ["next"]


@pytest.mark.parametrize("granted", [False, True])
async def test_a_cancelled_request_keeps_no_slot(granted):
    place = Place()
    holding = await place.occupied()
    leaver = await place.asks("leaver", place.slots.slot())
    await place.asks("stayer", place.slots.slot())
    if granted:
        await holding.aclose()
    leaver.cancel()
    place.tasks.remove(leaver)
    with pytest.raises(asyncio.CancelledError):
        await leaver
    if not granted:
        await holding.aclose()
    assert await place.over() == ["stayer"]


async def test_a_busy_client_alone_has_all_slots():
    place = Place(at_once=4, beside=1)
    flooding = [await place.pressing() for _ in range(5)]
    async with contextlib.AsyncExitStack() as holding:
        for slot in flooding[:4]:
            await holding.enter_async_context(slot)
        await place.asks("next", flooding[4])
        assert len(place.slots) == 1
    assert await place.over() == ["next"]


@pytest.mark.parametrize(("since", "there"), [(1.9, True), (2.1, False)])
async def test_there_are_fewer_slots_while_rested_and_busy_clients_compete(since, there):
    place = Place(at_once=4, beside=1)
    flooding = [await place.pressing() for _ in range(2)]
    resting = await place.resting()
    async with resting:
        pass
    place.clock.now += since
    for slot in flooding:  # they have had no rest
        slot.rests(place.clock.now)
    async with flooding[0]:
        await place.asks("flood", flooding[1])
        assert len(place.slots) == there
        await place.asks("resting", resting)
    assert await place.over() == (["resting", "flood"] if there else ["flood", "resting"])


async def test_a_new_session_has_no_rest_credit():
    place = Place(at_once=2, beside=1)
    flooding = [await place.pressing() for _ in range(2)]
    async with place.slots.slot():
        pass
    async with flooding[0]:
        await place.asks("flood", flooding[1])
        assert await place.over() == ["flood"]


async def test_no_request_overtakes_a_waiting_rested_client():
    place = Place(at_once=2, beside=1)
    flooding = [await place.pressing() for _ in range(2)]
    async with await place.resting():
        pass
    async with flooding[0]:
        await place.asks("resting", place.slots.slot())
        assert len(place.slots) == 1
        place.clock.now += 3  # the client has left, and a slot would be free
        flooding[1].rests(place.clock.now)
        await place.asks("flood", flooding[1])
        assert place.had == []
    assert await place.over() == ["resting", "flood"]


async def test_rested_clients_share_all_slots():
    place = Place(at_once=2, beside=1)
    async with await place.resting():
        await place.asks("one", await place.resting())
        assert await place.over() == ["one"]


async def test_a_client_with_saved_credit_blocks_no_slot():
    place = Place(at_once=4, beside=1)
    saving = await place.resting()
    for _ in range(2):
        async with saving:
            pass
    holding, flooding = await place.pressing(), await place.pressing()
    async with holding:
        await place.asks("flood", flooding)
        assert len(place.slots) == 0
    assert await place.over() == ["flood"]


def test_a_step_that_waits_for_its_slot_can_be_cancelled_and_never_runs():
    with serving() as server:
        server.manager.scheduler = RequestScheduler(1, longest=NEVER)
        with peer(server, named=True) as long, peer(server, named=True) as other:
            for each in (long, other):
                each.open()
                each.reset()
            long.send(
                "step",
                {"code": "print('on'); import time; time.sleep(600)"},
                id="long",
                stream=True,
            )
            long.until("on\n")
            other.send("step", {"code": "ran = True"}, id="waits")
            eventually(lambda: len(server.manager.scheduler) == 1)
            _, _, metrics = ask(server, "GET", "/metrics")
            assert b"requests_waiting 1" in metrics
            other.send("cancel", {"request": "waits"}, id="c")
            frames = other.replies("waits", "c")
            assert frames["c"]["data"] == {"running": True}
            assert "cancelled" in frames["waits"]["data"]["message"]
            long.send("cancel", {"request": "long"}, id="c")
            long.replies("long", "c")
            assert "ran" not in other.ask("variables")["data"]["names"]
            assert other.run("1 + 1")["success"]
