"""`ReceiveBuffers`: limits on the memory and time of partly received messages, over all clients.

A client that sends the beginning of a message makes the server hold it until the rest arrives.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Hashable
from typing import Protocol

from ..protocol.request_error import RequestError
from ..settings import Settings
from ..tenants.client_address import is_loopback

# Minimum rate in bytes per second. A client that sends or reads more slowly occupies memory and a
# connection at next to no cost.
MIN_RATE = 64 * 1024
# Seconds that the server reads on and discards after it refused a message: a client that still
# sends reads the answer only when it is done.
LINGER_S = 1.0
# One client of a public server may hold the limit divided by this.
_SHARE = 4


def receive_timeout(seconds: float, count: int) -> float:
    """Seconds that `count` bytes may take: `seconds`, and the transfer time at MIN_RATE."""
    return seconds + count / MIN_RATE


class IncomingBody(Protocol):
    """The body of a request in progress. `upload`: it is an upload."""

    upload: bool

    def abort(self, refusal: RequestError) -> None:
        """Fail the request with `refusal` unless its body is complete."""


class ReceiveBuffers:
    """Bytes of messages that the application has not consumed, accounted by client.

    All together are bounded by `Settings.inbound_bytes`. On a public server one client may hold a
    quarter of that, or one message if that is larger.

    A draining server waits for uploads, and aborts other partial bodies: they cannot lead to a
    session any more.
    """

    __slots__ = (
        "_bodies",
        "_by_client",
        "_limit",
        "_share",
        "_stopped",
        "_uploads_done",
        "buffered",
    )

    def __init__(self, settings: Settings) -> None:
        self._limit = settings.inbound_bytes
        # A message exists twice for a moment: here, and in the buffer that it was read from.
        share = max(self._limit // _SHARE, 2 * settings.largest_message)
        self._share = self._limit if is_loopback(settings.host) else min(self._limit, share)
        self._by_client: Counter[Hashable] = Counter()
        self.buffered = 0
        self._bodies: set[IncomingBody] = set()
        self._stopped: RequestError | None = None
        self._uploads_done = asyncio.Event()
        self._uploads_done.set()

    @property
    def in_progress(self) -> int:
        """Number of requests in progress."""
        return len(self._bodies)

    def begin(self, body: IncomingBody) -> None:
        """Register the request of `body`, until `done`."""
        self._bodies.add(body)
        if body.upload:
            self._uploads_done.clear()
        if self._stopped is not None:
            body.abort(self._stopped)

    def done(self, body: IncomingBody) -> None:
        """Unregister the request of `body`."""
        self._bodies.discard(body)
        if not any(each.upload for each in self._bodies):
            self._uploads_done.set()

    async def wait_uploads(self) -> None:
        """Wait until no upload is in progress."""
        await self._uploads_done.wait()

    def stop(self, refusal: RequestError) -> None:
        """Abort partial bodies with `refusal`, now and from now on."""
        self._stopped = refusal
        for body in tuple(self._bodies):
            body.abort(refusal)

    def adjust(self, client: Hashable, count: int) -> bool:
        """Account for `count` more bytes, or fewer if negative; False above a limit."""
        mine = self._by_client[client] + count
        if count > 0 and (self.buffered + count > self._limit or mine > self._share):
            return False
        self.buffered += count
        if mine:
            self._by_client[client] = mine
        else:
            # Forget clients that hold nothing.
            del self._by_client[client]
        return True
