"""`RequestScheduler`: who goes next while more is asked for at once than the processors can do.

Two lines, each in order of arrival: sessions whose clients rest between requests go before those
whose clients never do, however many these are. A session does one thing at a time, so within a queue
all have as much.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType

# So many for each processor: the event loop finds several answers at a time, and sessions run one
# after another without it. Steps of 32 clients a second, two processors: with one for each 1, with
# two 1.2, with four 1.4, without a bound 1.1.
_FOR_EACH = 4
# While some rest between requests and others never do: one for each processor, and at least so
# many, for with one the event loop idles while it waits for the session. With more the sessions'
# processes wait for processors, in an order that nobody chose: with three for two processors p99
# of clients beside a flood was 32 ms for 19, with four 56.
_AT_LEAST = 2
# Seconds. Who has rested before its last request is there for so long: a model may think meanwhile.
_THERE = 2.0
# Seconds. What takes longer sleeps, asks a model or computes. For processors that has weights of
# its own (docs/design/giving-way.md, "How"), and it must not keep others from theirs.
_LONGEST = 0.02
# Seconds of rest that a request uses up, and that can be saved. A program that asks as soon as it
# is answered has none; who reads an answer before the next question has, for twenty in a row too.
_REST = 0.005
_REST_SAVED = 0.1
# While both lines are waited in: for so many of the rested, one of the others, so none waits for
# ever behind clients that rest as little as counts.
_RESTED_TO_OTHERS = 8


class SchedulerSlot:
    """One session's, and how much its client has rested.

    `rested`: whether it had, as it last asked.

    An async context manager, entered for each request, one after another: it waits until there is
    room for it.
    """

    __slots__ = ("_rest", "_scheduler", "_since", "began", "rested", "turn")

    def __init__(self, scheduler: RequestScheduler) -> None:
        self._scheduler = scheduler
        self._rest = _REST_SAVED
        self._since = scheduler.now()
        self.began = 0.0
        self.rested = True
        self.turn: asyncio.Future[None] | None = None  # in queue

    @property
    def waits(self) -> bool:
        """Whether it is entered, and there is no room yet."""
        return self.turn is not None

    def asks(self, now: float) -> bool:
        """A request has come; whether its client has just rested, and lives on no savings."""
        gained = now - self._since
        saved = min(_REST_SAVED, self._rest + gained)
        self.rested = saved >= _REST
        self._rest = max(0.0, saved - _REST)
        return gained >= _REST

    def rests(self, now: float) -> None:
        """The request is done with."""
        self._since = now

    async def __aenter__(self) -> SchedulerSlot:
        if not self._scheduler.take(self):
            await self._scheduler.wait(self)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._scheduler.give_back(self)


class RequestScheduler:
    """Room for `at_once` slots, and for `beside` while some clients rest and others never do.

    None counts for over `longest` seconds. Used by one event loop.
    """

    def __init__(
        self,
        at_once: int | None = None,
        beside: int | None = None,
        *,
        longest: float = _LONGEST,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        processors = len(os.sched_getaffinity(0))
        self._at_once = at_once or max(_AT_LEAST, _FOR_EACH * processors)
        self._beside = min(self._at_once, beside or max(_AT_LEAST, processors))
        self._longest = longest
        self._clock = clock
        self._taken: dict[SchedulerSlot, None] = {}  # the one that began first comes first
        self._taken_by_others = 0
        self._rested: deque[SchedulerSlot] = deque()
        self._others: deque[SchedulerSlot] = deque()
        # Clients that rest, by when they last asked; the one that did so first comes first.
        self._there: dict[SchedulerSlot, float] = {}
        self._passed = 0  # of the rested, since the last of the others
        self._look_at_oldest: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        """How many wait."""
        return len(self._rested) + len(self._others)

    def now(self) -> float:
        """The time by which slots rest, in seconds."""
        return self._clock()

    def slot(self) -> SchedulerSlot:
        """For a new session."""
        return SchedulerSlot(self)

    def take(self, slot: SchedulerSlot) -> bool:
        """Give it room, if there is any; if not, it stands in queue, and must wait."""
        now = self._clock()
        if self._there:
            self._forget_who_left(now)
            self._there.pop(slot, None)
        if slot.asks(now):
            self._there[slot] = now
        queue = self._rested if slot.rested else self._others
        if not queue and not self._rested and self._has_room(now, slot.rested):
            self._begin(slot, now)
            return True
        slot.turn = asyncio.get_running_loop().create_future()
        queue.append(slot)
        if self._look_at_oldest is None:
            self._watch(now)
        return False

    async def wait(self, slot: SchedulerSlot) -> None:
        """Wait until it has come to the head of its queue, and there is room for it."""
        assert slot.turn is not None
        try:
            await slot.turn
        except BaseException:
            for queue in (self._rested, self._others):
                if slot in queue:
                    queue.remove(slot)
            self.give_back(slot)
            raise
        finally:
            slot.turn = None

    def give_back(self, slot: SchedulerSlot) -> None:
        """It is done with, or does not wait any more."""
        now = self._clock()
        slot.rests(now)
        self._free(slot)
        if self._rested or self._others:
            self._fill(now)

    def _has_room(self, now: float, rested: bool) -> bool:
        taken = len(self._taken)
        if taken < self._beside or taken >= self._at_once:
            return taken < self._beside
        if rested and not self._taken_by_others and not self._others:
            return True
        self._forget_who_left(now)
        return not self._there

    def _forget_who_left(self, now: float) -> None:
        while self._there:
            first = next(iter(self._there))
            if self._there[first] > now - _THERE:
                break
            del self._there[first]

    def _begin(self, slot: SchedulerSlot, now: float) -> None:
        slot.began = now
        self._taken[slot] = None
        self._taken_by_others += not slot.rested

    def _free(self, slot: SchedulerSlot) -> None:
        if slot in self._taken:
            del self._taken[slot]
            self._taken_by_others -= not slot.rested

    def _fill(self, now: float) -> None:
        while (queue := self._following(now)) is not None:
            following = queue.popleft()
            self._passed = self._passed + 1 if following.rested else 0
            # Who was cancelled is done with it as soon as its task runs.
            if following.turn is not None and not following.turn.done():
                self._begin(following, now)
                following.turn.set_result(None)

    def _following(self, now: float) -> deque[SchedulerSlot] | None:
        """The line whose head is next; None if there is no room for it."""
        others = self._others if self._others and self._has_room(now, rested=False) else None
        if self._rested and not (others and self._passed >= _RESTED_TO_OTHERS):
            return self._rested if self._has_room(now, rested=True) else None
        return others

    def _watch(self, now: float) -> None:
        """Look at the oldest as soon as it has taken long."""
        left = next(iter(self._taken)).began + self._longest - now
        self._look_at_oldest = asyncio.get_running_loop().call_later(left, self._look)

    def _look(self) -> None:
        self._look_at_oldest = None
        now = self._clock()
        for slot in [slot for slot in self._taken if slot.began <= now - self._longest]:
            self._free(slot)
        self._fill(now)
        if self._rested or self._others:
            self._watch(now)
