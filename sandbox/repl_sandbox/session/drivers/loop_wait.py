"""`readable`: an event loop waits once for one descriptor."""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial


async def readable(fd: int, seconds: float | None = None) -> None:
    """Wait until `fd` is readable or at its end, or until so many seconds have passed."""
    loop = asyncio.get_running_loop()
    came: asyncio.Future[None] = loop.create_future()
    loop.add_reader(fd, partial(_set, came))
    try:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await came
    finally:
        loop.remove_reader(fd)


def _set(came: asyncio.Future[None]) -> None:
    if not came.done():
        came.set_result(None)
