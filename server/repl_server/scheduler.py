"""`RequestScheduler`: the order of requests when they exceed the processors.

There are two queues, each in order of arrival. Sessions whose clients pause between requests go
before those whose clients never pause, however many these are. A session runs one request at a
time, so all sessions in a queue get equal shares.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType

# Slots per processor. Several, because the event loop handles several replies at a time, and
# sessions continue without it in between. Steps of 32 clients per second on two processors,
# relative to one slot per processor: 1.2 with two, 1.4 with four, 1.1 without a bound.
_FOR_EACH = 4
# Minimum number of slots while some clients pause and others do not; one per processor otherwise.
# With one slot, the event loop idles while it waits for the session. With more, the sessions'
# processes queue for processors in an order that the scheduler does not control: p99 of clients
# beside a flood was 19 ms with two slots on two processors, 32 ms with three and 56 ms with four.
_AT_LEAST = 2
# Seconds after its last request in which a pausing client counts as present: its model may be
# thinking.
_THERE = 2.0
# Seconds after which a request gives up its slot: it sleeps, calls a model or computes. Computation
# is scheduled by other means (docs/design/fair-share.md, "Mechanisms"), and must not block other
# requests.
_LONGEST = 0.02
# Seconds of pause that one request uses up, and that a session can save. A program that sends the
# next request at once saves nothing; a client that reads each reply first has savings for twenty
# requests.
_REST = 0.005
_REST_SAVED = 0.1
# While both queues are waited in, one request from the second queue follows so many from the first,
# so that the second never starves.
_RESTED_TO_OTHERS = 8


class SchedulerSlot:
    """The slot of one session, and the pauses that its client has saved.

    An async context manager, entered for one request at a time; entering waits for capacity.
    `rested`: whether the client had paused enough before its last request.
    """

    __slots__ = ("_rest", "_scheduler", "_since", "began", "rested", "turn")

    def __init__(self, scheduler: RequestScheduler) -> None:
        self._scheduler = scheduler
        self._rest = _REST_SAVED
        self._since = scheduler.now()
        self.began = 0.0
        self.rested = True
        self.turn: asyncio.Future[None] | None = None  # while queued

    @property
    def waits(self) -> bool:
        """True if a request of the session is queued."""
        return self.turn is not None

    def asks(self, now: float) -> bool:
        """Record a request; whether the client has paused since the last one."""
        gained = now - self._since
        saved = min(_REST_SAVED, self._rest + gained)
        self.rested = saved >= _REST
        self._rest = max(0.0, saved - _REST)
        return gained >= _REST

    def rests(self, now: float) -> None:
        """Record the end of a request."""
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
    """Runs up to `at_once` requests, or `beside` while some clients pause and others do not.

    A request counts for at most `longest` seconds. For one event loop.
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
        self._running: dict[SchedulerSlot, None] = {}  # oldest first
        self._taken_by_others = 0
        self._rested: deque[SchedulerSlot] = deque()
        self._others: deque[SchedulerSlot] = deque()
        # Pausing clients, by the time of the last request, oldest first.
        self._there: dict[SchedulerSlot, float] = {}
        self._passed = 0  # requests from the first queue since the last from the second
        self._look_at_oldest: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        """Number of queued requests."""
        return len(self._rested) + len(self._others)

    def now(self) -> float:
        """The scheduler's clock, in seconds."""
        return self._clock()

    def slot(self) -> SchedulerSlot:
        """Create the slot of a session."""
        return SchedulerSlot(self)

    def take(self, slot: SchedulerSlot) -> bool:
        """Start a request, or queue it and return False; the caller must then `wait`."""
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
        """Wait until the queued request may start."""
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
        """End a request, or its wait."""
        now = self._clock()
        slot.rests(now)
        self._free(slot)
        if self._rested or self._others:
            self._fill(now)

    def _has_room(self, now: float, rested: bool) -> bool:
        running = len(self._running)
        if running < self._beside or running >= self._at_once:
            return running < self._beside
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
        self._running[slot] = None
        self._taken_by_others += not slot.rested

    def _free(self, slot: SchedulerSlot) -> None:
        if slot in self._running:
            del self._running[slot]
            self._taken_by_others -= not slot.rested

    def _fill(self, now: float) -> None:
        while (queue := self._following(now)) is not None:
            following = queue.popleft()
            self._passed = self._passed + 1 if following.rested else 0
            # A cancelled request leaves the queue as soon as its task runs.
            if following.turn is not None and not following.turn.done():
                self._begin(following, now)
                following.turn.set_result(None)

    def _following(self, now: float) -> deque[SchedulerSlot] | None:
        """The queue with the next request to start; None without capacity."""
        others = self._others if self._others and self._has_room(now, rested=False) else None
        if self._rested and not (others and self._passed >= _RESTED_TO_OTHERS):
            return self._rested if self._has_room(now, rested=True) else None
        return others

    def _watch(self, now: float) -> None:
        """Check the oldest request as soon as it exceeds its time."""
        left = next(iter(self._running)).began + self._longest - now
        self._look_at_oldest = asyncio.get_running_loop().call_later(left, self._look)

    def _look(self) -> None:
        self._look_at_oldest = None
        now = self._clock()
        for slot in [slot for slot in self._running if slot.began <= now - self._longest]:
            self._free(slot)
        self._fill(now)
        if self._rested or self._others:
            self._watch(now)
