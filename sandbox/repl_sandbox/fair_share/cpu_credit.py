"""`CpuCredit`: CPU time that a session may use before the scheduler slows it down.

A session earns CPU time with each cell, and a little while none of its processes wants a processor.
It can save some, and pays for what it uses. A session without credit is slowed down until it has
rested for a few seconds. So a client of short steps is never slowed down for a session that
computes for long, and sessions that all compute share the processors equally.

A rate of CPU time alone does not distinguish these: each of twenty loops on two processors uses
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
MAX_CREDIT: Final = 0.1
# The most debt, however long a session computed: it is paid after 4 s of rest.
MAX_DEBT: Final = 0.05
# Seconds for which one observation of a process that wants a processor counts, unless the
# observation before it was the same: in a large sandbox a session is observed every half minute.
_STANDS: Final = 0.1


class CpuCredit:
    """The credit of one session that begins at `now` (seconds, on a monotonic clock)."""

    def __init__(self, now: float) -> None:
        self.has_credit = True
        self._since = now
        self._used = 0.0
        self._saved = FIRST
        self._was_busy = False

    def charge(self, used: float, cells: int, now: float, *, wants: bool) -> bool:
        """Return whether the session has credit now, after `used` CPU seconds since it began.

        `cells`: the number begun since the last call. `wants`: a process of the session runs or
        waits for nothing but a processor. A `used` that has shrunk counts as unchanged: the CPU
        time of processes that nobody waited for is lost.
        """
        rest = now - self._since
        if wants:
            rest = 0.0 if self._was_busy else max(0.0, rest - _STANDS)
        credit = self._saved + EARNED * rest + A_CELL * cells
        saved = credit - max(0.0, used - self._used)
        self._saved = min(MAX_CREDIT, max(-MAX_DEBT, saved))
        self._since, self._used, self._was_busy = now, used, wants
        # The threshold for recovering is a little above that for running out, so that the state
        # does not change at each observation.
        self.has_credit = self._saved >= (0.0 if self.has_credit else FIRST)
        return self.has_credit
