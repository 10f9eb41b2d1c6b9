"""`SingleFlight`: one client of a process does the work that many request at the same time."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Hashable
from concurrent.futures import Future


class SingleFlight:
    """Work by name. Threads and event loops share it; a fork starts without work in progress."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._in_progress: dict[Hashable, Future[bool]] = {}

    async def once(self, name: Hashable, work: Callable[[], Awaitable[None]]) -> None:
        """Do `work`, or wait for another caller that does it.

        Raises:
            Exception: raised by `work`. A caller that waited for a failed attempt tries for itself.
        """
        if self._process != os.getpid():
            self._begin()  # the worker is not in this process
        while True:
            with self._lock:
                other = self._in_progress.get(name)
                if other is None:
                    future = self._in_progress[name] = Future[bool]()
                    break
            # A caller that is cancelled while it waits leaves the worker running.
            if await asyncio.shield(asyncio.wrap_future(other)):
                return
        done = False
        try:
            await work()
            done = True
        finally:
            with self._lock:
                del self._in_progress[name]
            future.set_result(done)
