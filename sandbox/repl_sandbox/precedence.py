"""`Precedence`: whether a session goes before others, by the CPU time that it used lately.

A session is given some CPU time with each cell, and a little while it wants none; it can save some,
and spends what it uses. One that has spent more than it had loses its precedence, and has it back
after a few seconds of rest. So who takes short steps is never behind who computes for long, and
among those who compute nobody is before another.

A rate alone would not do: of twenty that never rest on two processors each uses little, and of
clients that take short steps each uses as much.
"""

from __future__ import annotations

from typing import Final

# CPU seconds for each cell. A short one takes 2 ms with all that belongs to it.
A_CELL: Final = 0.01
# CPU seconds for each second in which no process of the session wants a processor.
EARNED: Final = 0.02
# What a new session has. Little, or whoever begins anew all the time would always have it: to
# begin takes 10 ms, and a first look at the data some more.
FIRST: Final = 0.03
# What can be saved: for a cell that computes for a moment, amid short ones.
SAVED: Final = 0.1
# What can be owed, however long a session computed: it is back after 4 s of rest.
OWED: Final = 0.05
# Seconds for which one look that found it wanting stands, unless the look before did as well: many
# sessions are looked at every half minute.
_STANDS: Final = 0.1


class Precedence:
    """One session's, which begins at `now` (seconds, on any clock that never goes back)."""

    def __init__(self, now: float) -> None:
        self.held = True
        self._since = now
        self._used = 0.0
        self._saved = FIRST
        self._wanted = False

    def look(self, used: float, cells: int, now: float, *, wants: bool) -> bool:
        """Whether it has precedence now, after `used` CPU seconds since it began.

        `cells`: how many were begun since the last look. `wants`: some process of it runs, or waits
        for nothing but a processor. Less used than before counts as no more: what processes used
        that nobody waited for is lost.
        """
        rest = now - self._since
        if wants:
            rest = 0.0 if self._wanted else max(0.0, rest - _STANDS)
        had = self._saved + EARNED * rest + A_CELL * cells
        saved = had - max(0.0, used - self._used)
        self._saved = min(SAVED, max(-OWED, saved))
        self._since, self._used, self._wanted = now, used, wants
        # It comes back a little above where it goes, so as not to change at each look.
        self.held = self._saved >= (0.0 if self.held else FIRST)
        return self.held
