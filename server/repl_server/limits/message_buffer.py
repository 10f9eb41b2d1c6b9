"""`MessageBuffer`: bytes of one socket's messages that the server holds, booked and timed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Sequence

from .receive_buffers import ReceiveBuffers, patience

# Bytes that are held without being booked: most messages are smaller, and cost nothing so.
UNBOOKED = 64 * 1024
# What a fragment of a message takes beside its bytes: an object, and its place in a list.
_FRAGMENT = 128


class MessageBuffer:
    """The messages of one socket: those that came whole until the application is done with them,
    and the one that is half received.

    Args:
        inbound: where bytes are booked, under the client that `owner` names.
        seconds: for a message that has begun, beside the time that its bytes take.
        paused: says whether the application has to take a message before more is read.
        late: called when a message does not come in time.
    """

    def __init__(
        self,
        inbound: ReceiveBuffers,
        seconds: float,
        *,
        owner: Callable[[], Hashable],
        paused: Callable[[], bool],
        late: Callable[[], None],
    ) -> None:
        self._inbound, self._seconds = inbound, seconds
        self._owner, self._paused, self._late = owner, paused, late
        self._loop = asyncio.get_running_loop()
        self._whole = self._half = 0
        self._counted = self._fragments = 0
        self._booked = 0
        self._client: Hashable | None = None
        self._begun = 0.0
        self._due: asyncio.TimerHandle | None = None

    def came(self, count: int) -> None:
        """A message of so many bytes is whole, and on its way to the application."""
        self._whole += count
        self._counted = self._fragments = 0

    def taken(self) -> None:
        """The application comes for more: it is done with those before."""
        self._whole = 0
        if self._booked:
            self._book()

    def look(self, buffered: int, fragments: Sequence[bytes]) -> bool:
        """See what is half received now; False if there is no room for it."""
        # Each fragment is counted once: there may be a million, and one more with each packet.
        new = fragments[self._counted :]
        self._counted += len(new)
        self._fragments += sum(map(len, new)) + _FRAGMENT * len(new)
        self._half = buffered + self._fragments
        if not self._half:
            self._stop_waiting()
        elif self._due is None:
            self._begun = self._loop.time()
            self._wait(self._seconds)
        return self._book()

    def forget(self) -> None:
        """The socket holds nothing any more."""
        self._stop_waiting()
        self._whole = self._half = self._counted = self._fragments = 0
        self._book()

    def _book(self) -> bool:
        held = self._whole + self._half
        due = held if held > UNBOOKED else 0
        if due == self._booked:
            return True
        if self._client is None:
            self._client = self._owner()
        if not self._inbound.change(self._client, due - self._booked):
            return False
        self._booked = due
        return True

    def _wait(self, seconds: float) -> None:
        self._due = self._loop.call_later(seconds, self._look_at_clock)

    def _stop_waiting(self) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None

    def _look_at_clock(self) -> None:
        now = self._loop.time()
        if self._paused():
            self._begun = now
        left = self._begun + patience(self._seconds, self._half) - now
        if left > 0:
            self._wait(left)
        else:
            self._due = None
            self._late()
