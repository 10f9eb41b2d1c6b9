"""What was received in part, of all clients together: how much memory it may take, and how long.

Whoever sends the beginning of a message makes the server hold it until the rest comes.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Hashable
from typing import Protocol

from ..protocol.request_error import RequestError
from ..settings import Settings
from ..tenants.client_address import is_loopback

# Bytes in a second of the slowest line that is waited for. Whoever sends slower, or takes slower
# what was sent, holds memory and a connection for next to nothing.
MIN_RATE = 64 * 1024
# Seconds that the server reads on and discards after it refused a message: a client that still sends
# reads the answer only when it is done.
LINGER_S = 1.0
# The part of all that one client may hold, where others may want it too.
_SHARE = 4


def receive_timeout(seconds: float, count: int) -> float:
    """How long `count` bytes may take: `seconds`, and what they take on the slowest line."""
    return seconds + count / MIN_RATE


class IncomingBody(Protocol):
    """The body of a request that is under way. `upload`: it is a context's."""

    upload: bool

    def abort(self, refusal: RequestError) -> None:
        """Refuse the request if its body has not come whole."""


class ReceiveBuffers:
    """Bytes of messages that have not been taken whole, each booked under whom it is from.

    All together hold no more than `Settings.inbound_bytes`. Where strangers may come, one of them
    holds a quarter of that at most, or one message.

    A server that stops waits for uploads, and cuts what else has not come, for which there is no
    session that would be told.
    """

    __slots__ = ("_bodies", "_by_client", "_limit", "_share", "_stopped", "_uploads_done", "held")

    def __init__(self, settings: Settings) -> None:
        self._limit = settings.inbound_bytes
        # A message passes through here beside what was read with it.
        share = max(self._limit // _SHARE, 2 * settings.largest_message)
        self._share = self._limit if is_loopback(settings.host) else min(self._limit, share)
        self._by_client: Counter[Hashable] = Counter()
        self.held = 0
        self._bodies: set[IncomingBody] = set()
        self._stopped: RequestError | None = None
        self._uploads_done = asyncio.Event()
        self._uploads_done.set()

    @property
    def in_progress(self) -> int:
        """How many requests are under way."""
        return len(self._bodies)

    def begin(self, body: IncomingBody) -> None:
        """The request of `body` is under way, until it is `done`."""
        self._bodies.add(body)
        if body.upload:
            self._uploads_done.clear()
        if self._stopped is not None:
            body.abort(self._stopped)

    def done(self, body: IncomingBody) -> None:
        """It is not any more."""
        self._bodies.discard(body)
        if not any(each.upload for each in self._bodies):
            self._uploads_done.set()

    async def wait_uploads(self) -> None:
        """Wait until no upload is under way."""
        await self._uploads_done.wait()

    def stop(self, refusal: RequestError) -> None:
        """Refuse what has not come whole, and from now on what does not come whole at once."""
        self._stopped = refusal
        for body in tuple(self._bodies):
            body.abort(refusal)

    def adjust(self, client: Hashable, count: int) -> bool:
        """Book `count` more bytes, or fewer if it is negative; False if they do not fit."""
        mine = self._by_client[client] + count
        if count > 0 and (self.held + count > self._limit or mine > self._share):
            return False
        self.held += count
        if mine:
            self._by_client[client] = mine
        else:
            # A client that holds nothing is not remembered.
            del self._by_client[client]
        return True
