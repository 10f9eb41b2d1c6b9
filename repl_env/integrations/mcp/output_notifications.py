"""Output of a running cell as progress notifications: gathered, bounded, at a bounded rate.

They are for whoever watches. A client that does not read them holds nothing up, and the result of
the call has the output in any case.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TypeAlias

from repl_env.episode.effects import OnOutput

# Called with the seconds since the call began, and what there is to say.
Report: TypeAlias = Callable[[float, str], Awaitable[None]]

# Of one notification. Of what is printed faster than it is told, the newest is told.
MAX_CHARACTERS = 4000

# Seconds between two notifications: as often as a person reads.
PAUSE = 0.2

# Seconds in which the rest of a line may follow its beginning.
GATHERING = 0.03

# Seconds of silence after which a notification says that the code still runs: clients that wait a
# minute for a sign of life are common.
SILENCE = 10.0


@contextlib.asynccontextmanager
async def reporting(report: Report) -> AsyncGenerator[OnOutput]:
    """While this is entered, what the function that it yields is told goes to `report`."""
    output = _Output()
    task = asyncio.create_task(_tell(output, report))
    try:
        yield output.add
    finally:
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # what could not be told costs nothing else


class _Output:
    """Return the output that no notification has carried yet."""

    def __init__(self) -> None:
        self.news = asyncio.Event()
        self._text = ""
        self._dropped = 0

    def add(self, stream: str, text: str) -> None:
        gathered = self._text + text
        self._text = gathered[-MAX_CHARACTERS:]
        self._dropped += len(gathered) - len(self._text)
        self.news.set()

    def take(self) -> str:
        dropped = f"... {self._dropped} characters ...\n" if self._dropped else ""
        text, self._text, self._dropped = self._text, "", 0
        self.news.clear()
        return dropped + text


async def _tell(output: _Output, report: Report) -> None:
    began = time.monotonic()
    while True:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SILENCE):
                await output.news.wait()
                await asyncio.sleep(GATHERING)
        seconds = time.monotonic() - began
        await report(seconds, output.take() or f"The code has run for {seconds:.0f} s.")
        await asyncio.sleep(PAUSE)
