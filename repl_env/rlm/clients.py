"""One client per event loop: connections belong to the loop that opened them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary

Client = TypeVar("Client")

# Seconds that another loop has for closing its client; a loop that is stuck must not hold ours.
_PATIENCE = 5.0


class Clients(Generic[Client]):
    """The clients of one model.

    Args:
        make: a new client, called in the loop that it is for.
        shut: closes one, awaited in the loop that it is for.
    """

    def __init__(
        self, make: Callable[[], Client], shut: Callable[[Client], Awaitable[None]]
    ) -> None:
        self._make = make
        self._shut = shut
        self._lock = threading.Lock()
        self._by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, Client] = WeakKeyDictionary()

    def here(self) -> Client:
        """The client of the running loop, made at its first use."""
        loop = asyncio.get_running_loop()
        with self._lock:
            client = self._by_loop.get(loop)
            if client is None:
                self._drop_closed()
                client = self._by_loop[loop] = self._make()
            return client

    async def close(self) -> None:
        """Close all of them; later uses make new ones."""
        with self._lock:
            clients = list(self._by_loop.items())
            self._by_loop.clear()
        here = asyncio.get_running_loop()
        elsewhere = [
            asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._end(client), loop))
            for loop, client in clients
            if loop is not here and loop.is_running()
        ]
        for loop, client in clients:
            if loop is here:
                await self._end(client)
        if elsewhere:
            await asyncio.wait(elsewhere, timeout=_PATIENCE)

    async def _end(self, client: Client) -> None:
        await self._shut(client)

    def _drop_closed(self) -> None:
        # Their connections went with their loops; nothing is left that could be awaited.
        for loop in [loop for loop in self._by_loop if loop.is_closed()]:
            del self._by_loop[loop]
