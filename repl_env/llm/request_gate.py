"""`RequestGate`: a limit on concurrent requests to endpoints, for a whole process.

It also limits the concurrent sub-calls of one episode (`max_concurrent_subcalls`). There a child
run holds a slot too, and the sub-calls of that run have their own gate: no run waits behind a gate
in which it holds a slot.

A slot of the process is held only while one request is with a model. A run that waits for its
children, or for its share of a budget, holds none. So the holder of a slot waits for nobody behind
the gate, and no depth of runs and no limit can cause a deadlock.
"""

from __future__ import annotations

import threading
from typing import Literal

from repl_env.common.argument_checks import at_least
from repl_env.common.set_module import set_module
from repl_env.concurrency.fair_queue import FairQueue

# Common clients' connection pools serve this many without queueing (httpx: 100), and the lowest
# tiers of providers do not take this many for an attack.
_REQUESTS = 64


@set_module("repl_env.rlm")
class RequestGate:
    """A limit on concurrent work, for the event loops of all threads together.

    `async with gate:` waits for a slot; first come, first served. `limit` may change at any time: a
    higher one admits waiters at once, a lower one lets those inside finish first.

    Raises:
        TypeError, ValueError: `limit`, called `name`, is not an int of at least 1.
    """

    def __init__(self, limit: int, name: str = "limit") -> None:
        self._limit = at_least(limit, 1, name)
        self._in_flight = 0
        self._lock = threading.RLock()
        self._queue: FairQueue[None, Literal[True]] = FairQueue(
            self._lock, self._serve, self._release
        )

    @property
    def limit(self) -> int:
        """The number of slots."""
        return self._limit

    @limit.setter
    def limit(self, limit: int) -> None:
        with self._lock:
            self._limit = at_least(limit, 1, "limit")
            self._queue.serve_waiting()

    @property
    def in_flight(self) -> int:
        """The number of slots that are taken or being handed over."""
        return self._in_flight

    @property
    def waiting(self) -> int:
        """The number of waiters."""
        return len(self._queue)

    async def __aenter__(self) -> RequestGate:
        await self._queue.get(None)
        return self

    async def __aexit__(self, *_: object) -> None:
        # Without awaiting, so that a coroutine that is thrown away leaves too.
        with self._lock:
            self._in_flight -= 1
            self._queue.serve_waiting()

    def _serve(self, _: None) -> Literal[True] | None:
        if self._in_flight >= self._limit:
            return None
        self._in_flight += 1
        return True

    def _release(self, _: Literal[True]) -> None:
        self._in_flight -= 1
        self._queue.serve_waiting()


REQUESTS = RequestGate(_REQUESTS)
