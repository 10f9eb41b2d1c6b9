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

# Seconds that another loop has for closing its client; a loop that is stuck must not hold ours.
_PATIENCE = 5.0


@dataclass(frozen=True, slots=True)
class _Open(Generic[Client]):
    """A client, and what closes it when its loop ends."""

    client: Client
    end: AsyncGenerator[None]

    async def close(self) -> None:
        if not self.end.ag_running:  # type: ignore[attr-defined] # its loop ends, and does it
            await self.end.aclose()


class ClientCache(Generic[Client]):
    """The clients of one model.

    A client whose loop ends is closed by then, as long as the loop is ended as `asyncio.run` ends
    it (`loop.shutdown_asyncgens`): afterwards nothing of it could be awaited any more.

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
        self._by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, _Open[Client]]
        self._by_loop = WeakKeyDictionary()

    def here(self) -> Client:
        """The client of the running loop, made at its first use."""
        loop = asyncio.get_running_loop()
        with self._lock:
            found = self._by_loop.get(loop)
            if found is None:
                self._drop_closed()
                client = self._make()
                found = self._by_loop[loop] = _Open(client, _begun(self._shut, client))
            return found.client

    async def close(self) -> None:
        """Close all of them; later uses make new ones."""
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


def _begun(shut: Callable[[Client], Awaitable[None]], client: Client) -> AsyncGenerator[None]:
    """A generator that has begun in the running loop, which thus closes it when it ends itself."""

    async def held() -> AsyncGenerator[None]:
        try:
            yield
        finally:
            await shut(client)

    end = held()
    with suppress(StopIteration):  # at the yield, for which nothing was waited
        end.__anext__().send(None)
    return end
