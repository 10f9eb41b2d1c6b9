"""`SingleFlight`: what many clients of a process want done is done by one of them at a time."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Hashable
from concurrent.futures import Future


class SingleFlight:
    """Work by its name. Threads and event loops share it; a fork begins with nothing under way."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._under_way: dict[Hashable, Future[bool]] = {}

    async def once(self, name: Hashable, work: Callable[[], Awaitable[None]]) -> None:
        """Have `work` done, or wait for another who does it.

        Raises:
            Exception: what `work` raises. Who waited for one that failed tries for itself.
        """
        if self._process != os.getpid():
            self._begin()  # who was at work is not here
        while True:
            with self._lock:
                other = self._under_way.get(name)
                if other is None:
                    ours = self._under_way[name] = Future[bool]()
                    break
            # Who is cancelled while it waits leaves the other at work.
            if await asyncio.shield(asyncio.wrap_future(other)):
                return
        done = False
        try:
            await work()
            done = True
        finally:
            with self._lock:
                del self._under_way[name]
            ours.set_result(done)
