"""`ReadPacing`: reads a session whose messages take much of an event loop slowly.

Code of a session can write to the worker's socket: calls that are refused, as fast as a socket
takes them, cost an attacker nothing and the loop 60 us each. So each session has an account of the
time that its messages took. It may use a share of the loop's time, and some in advance. A session
that owes more is read in small pieces, and as long as other sessions of the loop owe nothing, all
debtors together get one part of the loop's time, in turn.
"""

from __future__ import annotations

import asyncio
from weakref import WeakKeyDictionary

# Seconds of a loop that a session's messages may take in each second, and in advance.
_SHARE, _ADVANCE = 0.02, 0.05
# Additional seconds for each call of a client, which the client has asked for.
CALL_CREDIT = 0.0005
# The reciprocal of the share of a loop's time that debtors get.
_PARTS = 5
# Seconds for which a session that owes nothing is assumed to need the loop again.
_RECENT = 0.25
# Bytes of one read from a debtor: some refused calls, half a millisecond.
SMALL_READ = 1 << 10
# Seconds of the loop for a call of a host function, besides its message: the function is a task of
# the loop, or a thread that holds the interpreter lock.
CALL_SECONDS = 0.0003
# Seconds for a breach of the protocol: another worker must be started, by processes that other
# sessions need.
BREACH_SECONDS = 0.02
# The longest time in seconds that a client waits for the outcome of a cell because of that.
MAX_DELAY = 1.0


class LoopShare:
    """The debtors of one event loop, in turn."""

    def __init__(self) -> None:
        # The time at which a session that owed nothing was last used.
        self.used_at = 0.0
        self._free_at = 0.0

    def next(self, seconds: float, now: float) -> float:
        """The time at which a debtor that took `seconds` may go on."""
        if now - self.used_at > _RECENT:
            return now
        self._free_at = max(self._free_at, now) + seconds * _PARTS
        return self._free_at


_shares: WeakKeyDictionary[asyncio.AbstractEventLoop, LoopShare] = WeakKeyDictionary()


def share_of(loop: asyncio.AbstractEventLoop) -> LoopShare:
    """The turns of `loop`, which all its sessions share."""
    share = _shares.get(loop)
    if share is None:
        share = _shares[loop] = LoopShare()
    return share


class ReadPacing:
    """The account of one session. Times are arguments; `now` is monotonic."""

    def __init__(self) -> None:
        self._debt = self._charged_at = 0.0
        self._since_read = 0.0

    def begin(self, share: LoopShare, now: float) -> None:
        """Credit a call of the session's client, which uses the loop."""
        if self._debt:
            self._debt = max(0.0, self._debt - CALL_CREDIT)
        if not self.is_over_share(now):
            share.used_at = now

    def charge(self, seconds: float, now: float) -> None:
        """Charge `seconds` of the session's messages, until `now`."""
        paid = (now - self._charged_at) * _SHARE
        self._debt = max(0.0, self._debt - paid) + seconds
        self._charged_at = now
        self._since_read += seconds

    def is_over_share(self, now: float) -> bool:
        """Return whether the session's messages took more than their share."""
        debt = self._debt
        return debt > _ADVANCE and debt - (now - self._charged_at) * _SHARE > _ADVANCE

    def next_read(self, share: LoopShare, now: float) -> float:
        """The time of the next read from a session that owes."""
        seconds, self._since_read = self._since_read, 0.0
        return share.next(seconds, now)
