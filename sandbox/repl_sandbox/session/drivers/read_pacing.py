"""`ReadPacing`: a session whose messages take much of an event loop is read slowly, for others'
sake.

Code of a session can speak to the host in its worker's place: calls that are refused, as fast as a
socket takes them, cost an attacker nothing and the loop 60 us each. So each session has an account
of the time that its messages took. It may use a share of the loop and some in advance. A session
that owes more is read in small pieces, and as long as other sessions of the loop owe nothing, all
debtors together have one part of the loop's time, in turn.
"""

from __future__ import annotations

import asyncio
from weakref import WeakKeyDictionary

# Seconds of a loop that a session's messages may take in each second, and in advance.
_SHARE, _ADVANCE = 0.02, 0.05
# Seconds that each call of a client may take beside that: the client has asked for them.
FREE = 0.0005
# Of a loop's time, debtors get one part in so many.
_PARTS = 5
# Seconds for which a session that owes nothing is taken to need the loop again.
_RECENT = 0.25
# Bytes that are read at a time of a debtor: some refused calls, half a millisecond.
LITTLE = 1 << 10
# Seconds of the loop for a call of a host's function, beside its message: the function is a task of
# the loop, or a thread that has the interpreter meanwhile.
CALL = 0.0003
# Seconds of a breach of the protocol: another worker has to be made, by processes that others need.
BREACH = 0.02
# Seconds that a client waits at most, for that, for the outcome of a cell.
LONGEST = 1.0


class Turns:
    """The debtors of one event loop, one behind the other in time."""

    def __init__(self) -> None:
        # When a session that owed nothing was last used.
        self.used_at = 0.0
        self._free_at = 0.0

    def next(self, seconds: float, now: float) -> float:
        """When a debtor may go on that took `seconds`."""
        if now - self.used_at > _RECENT:
            return now
        self._free_at = max(self._free_at, now) + seconds * _PARTS
        return self._free_at


_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, Turns] = WeakKeyDictionary()


def turns_of(loop: asyncio.AbstractEventLoop) -> Turns:
    """Those of `loop`, which all of its sessions share."""
    turns = _turns.get(loop)
    if turns is None:
        turns = _turns[loop] = Turns()
    return turns


class ReadPacing:
    """The account of one session. Times come in as numbers; `now` is monotonic."""

    def __init__(self) -> None:
        self._owed = self._booked_at = 0.0
        self._since_turn = 0.0

    def begin(self, turns: Turns, now: float) -> None:
        """A client asks something of the session, which uses the loop for that."""
        if self._owed:
            self._owed = max(0.0, self._owed - FREE)
        if not self.owes(now):
            turns.used_at = now

    def book(self, seconds: float, now: float) -> None:
        """The session's messages took `seconds`, until `now`."""
        paid = (now - self._booked_at) * _SHARE
        self._owed = max(0.0, self._owed - paid) + seconds
        self._booked_at = now
        self._since_turn += seconds

    def owes(self, now: float) -> bool:
        """Whether the session's messages took more than their share."""
        owed = self._owed
        return owed > _ADVANCE and owed - (now - self._booked_at) * _SHARE > _ADVANCE

    def next_turn(self, turns: Turns, now: float) -> float:
        """When to read again of a session that owes."""
        seconds, self._since_turn = self._since_turn, 0.0
        return turns.next(seconds, now)
