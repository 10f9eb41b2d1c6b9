"""`RequestGate`: how many requests may be at endpoints at the same time, in a whole process.

And how many sub-calls of one episode may be under way (`max_concurrent_subcalls`). There a slot is
held by a run below too, whose own sub-calls pass a gate of their own: no run waits behind the gate
that it holds a slot of.

A slot of the process is held only while one request is with a model. A run that waits for its
children, or for its share of a budget, holds none. So whoever holds a slot waits for nobody behind
the gate, and no depth of runs and no limit can make a deadlock.
"""

from __future__ import annotations

import threading
from typing import Literal

from repl_env.common.argument_checks import at_least
from repl_env.concurrency.fair_queue import FairQueue

# What the connection pools of common clients serve without queueing themselves (httpx: 100), and
# less than what a provider's lowest tier takes for an attack.
_REQUESTS = 64


class RequestGate:
    """A limit on what is done at the same time, for the event loops of all threads together.

    `async with gate:` waits for a slot; first come, first served. `limit` can be changed at any
    time: more are let in at once, and with less, those inside finish first.

    Raises:
        TypeError, ValueError: `limit`, called `name`, is no int of at least 1.
    """

    def __init__(self, limit: int, name: str = "limit") -> None:
        self._limit = at_least(limit, 1, name)
        self._in_flight = 0
        self._lock = threading.RLock()
        self._line: FairQueue[None, Literal[True]] = FairQueue(
            self._lock, self._serve, self._take_back
        )

    @property
    def limit(self) -> int:
        """How many may be inside."""
        return self._limit

    @limit.setter
    def limit(self, limit: int) -> None:
        with self._lock:
            self._limit = at_least(limit, 1, "limit")
            self._line.move()

    @property
    def in_flight(self) -> int:
        """How many are inside, or were called in and are on their way."""
        return self._in_flight

    @property
    def waiting(self) -> int:
        """How many wait outside."""
        return len(self._line)

    async def __aenter__(self) -> RequestGate:
        await self._line.get(None)
        return self

    async def __aexit__(self, *_: object) -> None:
        # Without awaiting anything: so a coroutine that is thrown away leaves too.
        with self._lock:
            self._in_flight -= 1
            self._line.move()

    def _serve(self, _: None) -> Literal[True] | None:
        if self._in_flight >= self._limit:
            return None
        self._in_flight += 1
        return True

    def _take_back(self, _: Literal[True]) -> None:
        self._in_flight -= 1
        self._line.move()


REQUESTS = RequestGate(_REQUESTS)
