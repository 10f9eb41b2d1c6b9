"""`MessageBuffer`: bytes of one socket's messages that the server holds, booked and timed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Sequence

from .receive_buffers import ReceiveBuffers, receive_timeout

# Bytes that are held without being booked: most messages are smaller, and cost nothing so.
UNBOOKED = 64 * 1024
# What a fragment of a message takes beside its bytes: an object, and its place in a list.
_FRAGMENT = 128


class MessageBuffer:
    """The messages of one socket: those that came whole until the application is done with them,
    and the one that is half received.

    Args:
        inbound: where bytes are booked, under the client that `tenant` names.
        seconds: for a message that has begun, beside the time that its bytes take.
        paused: says whether the application has to take a message before more is read.
        late: called when a message does not come in time.
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
        """A message of so many bytes is whole, and on its way to the application."""
        self._complete += count
        self._counted = self._fragments = 0

    def consumed(self) -> None:
        """The application comes for more: it is done with those before."""
        self._complete = 0
        if self._reserved:
            self._reserve()

    def update(self, buffered: int, fragments: Sequence[bytes]) -> bool:
        """See what is half received now; False if there is no room for it."""
        # Each fragment is counted once: there may be a million, and one more with each packet.
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
        """The socket holds nothing any more."""
        self._stop_waiting()
        self._complete = self._partial = self._counted = self._fragments = 0
        self._reserve()

    def _reserve(self) -> bool:
        held = self._complete + self._partial
        due = held if held > UNBOOKED else 0
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
