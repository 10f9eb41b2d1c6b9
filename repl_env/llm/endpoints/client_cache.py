"""One client per event loop: connections belong to the loop that opened them, and end with it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary

Client = TypeVar("Client")

# Seconds for another loop to close its client; a stuck loop must not block this one.
_PATIENCE = 5.0


@dataclass(frozen=True, slots=True)
class _Open(Generic[Client]):
    """A client, and the generator that closes it when its loop ends."""

    client: Client
    end: AsyncGenerator[None]

    async def close(self) -> None:
        if not self.end.ag_running:  # type: ignore[attr-defined] # its loop ends, and does it
            await self.end.aclose()


class ClientCache(Generic[Client]):
    """The clients of one model.

    A client is closed before its loop ends, if the loop ends as under `asyncio.run`
    (`loop.shutdown_asyncgens`): afterwards nothing of it could be awaited.

    Args:
        make: returns a new client, called in the client's loop.
        shut: closes a client, awaited in the client's loop.
    """

    def __init__(
        self, make: Callable[[], Client], shut: Callable[[Client], Awaitable[None]]
    ) -> None:
        self._make = make
        self._shut = shut
        self._lock = threading.Lock()
        self._by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, _Open[Client]]
        self._by_loop = WeakKeyDictionary()

    def here(self) -> Client:
        """Return the client of the running loop, made on first use."""
        loop = asyncio.get_running_loop()
        with self._lock:
            found = self._by_loop.get(loop)
            if found is None:
                self._drop_closed()
                client = self._make()
                found = self._by_loop[loop] = _Open(client, _closing_client(self._shut, client))
            return found.client

    async def close(self) -> None:
        """Close all clients; later uses make new ones."""
        with self._lock:
            known = list(self._by_loop.items())
            self._by_loop.clear()
        here = asyncio.get_running_loop()
        elsewhere = [
            asyncio.wrap_future(asyncio.run_coroutine_threadsafe(each.close(), loop))
            for loop, each in known
            if loop is not here and loop.is_running()
        ]
        for loop, each in known:
            if loop is here:
                await each.close()
        if elsewhere:
            await asyncio.wait(elsewhere, timeout=_PATIENCE)

    def _drop_closed(self) -> None:
        for loop in [loop for loop in self._by_loop if loop.is_closed()]:
            del self._by_loop[loop]


def _closing_client(
    shut: Callable[[Client], Awaitable[None]], client: Client
) -> AsyncGenerator[None]:
    """Start a generator in the running loop, which closes the generator when the loop ends."""

    async def context() -> AsyncGenerator[None]:
        try:
            yield
        finally:
            await shut(client)

    end = context()
    with suppress(StopIteration):  # suspended at the yield, so no wait was needed
        end.__anext__().send(None)
    return end
