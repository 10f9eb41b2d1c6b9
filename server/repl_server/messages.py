"""`Messages`: what came over one socket and the application has not taken yet."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any


class Messages:
    """In order; anybody puts, one takes: what of asyncio's queues a socket needs, and no more.

    Attributes:
        waiting: those that came.
        expected: whether who takes has come for the next one, and waits.
    """

    __slots__ = ("_came", "_loop", "waiting")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.waiting: deque[Any] = deque()
        self._came: asyncio.Future[None] | None = None

    @property
    def expected(self) -> bool:
        """As above."""
        return self._came is not None and not self._came.done()

    def empty(self) -> bool:
        """Whether there is none."""
        return not self.waiting

    def put_nowait(self, message: Any) -> None:
        """Put a message at the end."""
        self.waiting.append(message)
        if self._came is not None and not self._came.done():
            self._came.set_result(None)

    def coming(self) -> asyncio.Future[None]:
        """To be awaited while there is none; who gives that up has taken nothing."""
        assert not self.expected, "one takes messages"
        self._came = self._loop.create_future()
        return self._came

    def take(self) -> Any:
        """The first one."""
        return self.waiting.popleft()
