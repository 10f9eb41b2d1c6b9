"""What was received in part, of all clients together: how much memory it may take, and how long.

Whoever sends the beginning of a message makes the server hold it until the rest comes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable

from .addresses import is_loopback
from .settings import Settings

# Bytes in a second of the slowest line that is waited for. Whoever sends slower, or takes slower
# what was sent, holds memory and a connection for next to nothing.
MIN_RATE = 64 * 1024
# The part of all that one client may hold, where others may want it too.
_SHARE = 4


def patience(seconds: float, count: int) -> float:
    """How long `count` bytes may take: `seconds`, and what they take on the slowest line."""
    return seconds + count / MIN_RATE


class Inbound:
    """Bytes of messages that have not been taken whole, each booked under whom it is from.

    All together hold no more than `Settings.inbound_bytes`. Where strangers may come, one of them
    holds a quarter of that at most, or one message.
    """

    __slots__ = ("_by_client", "_limit", "_share", "held")

    def __init__(self, settings: Settings) -> None:
        self._limit = settings.inbound_bytes
        # A message passes through here beside what was read with it.
        share = max(self._limit // _SHARE, 2 * settings.largest_message)
        self._share = self._limit if is_loopback(settings.host) else min(self._limit, share)
        self._by_client: Counter[Hashable] = Counter()
        self.held = 0

    def change(self, client: Hashable, count: int) -> bool:
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
