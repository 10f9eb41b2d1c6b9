"""`MessageBuffer`: accounts for the received messages of one socket, and times partial ones."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Sequence

from .receive_buffers import ReceiveBuffers, receive_timeout

# Bytes that are not accounted for: most messages are smaller, and cost no bookkeeping.
UNBOOKED = 64 * 1024
# Memory of a fragment beside its bytes: an object, and its slot in a list.
_FRAGMENT = 128


class MessageBuffer:
    """Complete messages of one socket that the application has not consumed, and the partial one.

    Args:
        inbound: accounts for the bytes, under the client that `client` returns.
        seconds: time limit of a message, beside the time for its bytes (`receive_timeout`).
        paused: whether reading is paused until the application takes a message.
        late: called when a message exceeds its time limit.
    """

    def __init__(
        self,
        inbound: ReceiveBuffers,
        seconds: float,
        *,
        client: Callable[[], Hashable],
        paused: Callable[[], bool],
        late: Callable[[], None],
    ) -> None:
        self._inbound, self._seconds = inbound, seconds
        self._find_client, self._paused, self._late = client, paused, late
        self._loop = asyncio.get_running_loop()
        self._complete = self._partial = 0
        self._counted = self._fragments = 0
        self._reserved = 0
        self._client: Hashable | None = None
        self._begun = 0.0
        self._due: asyncio.TimerHandle | None = None

    def complete(self, count: int) -> None:
        """A message of `count` bytes is complete and queued for the application."""
        self._complete += count
        self._counted = self._fragments = 0

    def consumed(self) -> None:
        """The application has consumed all complete messages."""
        self._complete = 0
        if self._reserved:
            self._reserve()

    def update(self, buffered: int, fragments: Sequence[bytes]) -> bool:
        """Account for the partial message; False if it exceeds a limit."""
        # Counts each fragment once: there may be a million, and one more with each packet.
        new = fragments[self._counted :]
        self._counted += len(new)
        self._fragments += sum(map(len, new)) + _FRAGMENT * len(new)
        self._partial = buffered + self._fragments
        if not self._partial:
            self._stop_waiting()
        elif self._due is None:
            self._begun = self._loop.time()
            self._wait(self._seconds)
        return self._reserve()

    def clear(self) -> None:
        """Release everything."""
        self._stop_waiting()
        self._complete = self._partial = self._counted = self._fragments = 0
        self._reserve()

    def _reserve(self) -> bool:
        buffered = self._complete + self._partial
        due = buffered if buffered > UNBOOKED else 0
        if due == self._reserved:
            return True
        if self._client is None:
            self._client = self._find_client()
        if not self._inbound.adjust(self._client, due - self._reserved):
            return False
        self._reserved = due
        return True

    def _wait(self, seconds: float) -> None:
        self._due = self._loop.call_later(seconds, self._check_clock)

    def _stop_waiting(self) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None

    def _check_clock(self) -> None:
        now = self._loop.time()
        if self._paused():
            self._begun = now
        left = self._begun + receive_timeout(self._seconds, self._partial) - now
        if left > 0:
            self._wait(left)
        else:
            self._due = None
            self._late()
