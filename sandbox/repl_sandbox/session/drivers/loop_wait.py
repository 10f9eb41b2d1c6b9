"""`readable`: an event loop waits once for one descriptor."""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial


async def readable(fd: int, seconds: float | None = None) -> None:
    """Wait until `fd` is readable or at its end, at most `seconds`."""
    loop = asyncio.get_running_loop()
    event: asyncio.Future[None] = loop.create_future()
    loop.add_reader(fd, partial(_set, event))
    try:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await event
    finally:
        loop.remove_reader(fd)


def _set(event: asyncio.Future[None]) -> None:
    if not event.done():
        event.set_result(None)
