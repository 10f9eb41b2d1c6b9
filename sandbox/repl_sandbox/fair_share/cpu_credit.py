"""`CpuCredit`: CPU time that a session may use before it has to give way to others.

A session earns some CPU time with each cell, and a little while none of its processes wants a
processor. It can save some, and pays for what it uses. A session whose credit is spent gives way
until it has rested for a few seconds. So a client of short steps never gives way to a session that
computes for long, and sessions that all compute give way to one another equally.

A rate of CPU time alone does not tell these apart: each of twenty loops on two processors uses
little, and each of many clients of short steps uses as much.
"""

from __future__ import annotations

from typing import Final

# CPU seconds for each cell. A short one takes 2 ms with all that belongs to it.
A_CELL: Final = 0.01
# CPU seconds for each second in which no process of the session wants a processor.
EARNED: Final = 0.02
# Credit of a new session. It is small because a client that always opens a new session always has
# it: opening takes 10 ms, a first look at the data some more.
FIRST: Final = 0.03
# The most credit: enough for a cell that computes for a moment, amid short ones.
SAVED: Final = 0.1
# The most debt, however long a session computed: it is paid after 4 s of rest.
OWED: Final = 0.05
# Seconds for which one look that found a process wanting a processor counts, unless the look before
# found the same: in a large sandbox a session is looked at every half minute.
_STANDS: Final = 0.1


class CpuCredit:
    """The credit of one session that begins at `now` (seconds, on a monotonic clock)."""

    def __init__(self, now: float) -> None:
        self.solvent = True
        self._since = now
        self._used = 0.0
        self._saved = FIRST
        self._wanted = False

    def charge(self, used: float, cells: int, now: float, *, wants: bool) -> bool:
        """Return whether the session is solvent now, after `used` CPU seconds since it began.

        `cells`: how many were begun since the last call. `wants`: a process of the session runs or
        waits for nothing but a processor. A `used` that has shrunk counts as unchanged: the CPU
        time of processes that nobody waited for is lost.
        """
        rest = now - self._since
        if wants:
            rest = 0.0 if self._wanted else max(0.0, rest - _STANDS)
        had = self._saved + EARNED * rest + A_CELL * cells
        saved = had - max(0.0, used - self._used)
        self._saved = min(SAVED, max(-OWED, saved))
        self._since, self._used, self._wanted = now, used, wants
        # A session becomes solvent a little above where it stops to be, so as not to change at
        # each look.
        self.solvent = self._saved >= (0.0 if self.solvent else FIRST)
        return self.solvent
