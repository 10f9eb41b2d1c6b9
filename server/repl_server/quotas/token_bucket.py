"""`TokenBucket`: a rate limit that allows bursts."""

from __future__ import annotations

import math
from collections.abc import Callable

Clock = Callable[[], float]

# Levels are sums of products of floats, so a shortage smaller than this is a rounding error.
_ROUNDING = 1e-9


class TokenBucket:
    """Holds up to `size` tokens and gains `rate` tokens a second; starts full.

    `take` gives out at most `size + rate * t` tokens in any `t` seconds. `owe` records usage that
    is known only afterwards, and may leave a debt.
    """

    __slots__ = ("_at", "_clock", "_level", "rate", "size")

    def __init__(self, size: float, rate: float, clock: Clock) -> None:
        self.size = size
        self.rate = rate
        self._clock = clock
        self._level = size
        self._at = clock()

    @property
    def level(self) -> float:
        """Tokens available now; negative for a debt."""
        now = self._clock()
        self._level = min(self.size, self._level + self.rate * (now - self._at))
        self._at = now
        return self._level

    @property
    def full(self) -> bool:
        """True if the bucket equals a new one."""
        return self.level >= self.size - _ROUNDING

    @property
    def whole(self) -> int:
        """Whole tokens available now."""
        return max(0, math.floor(self.level + _ROUNDING))

    def wait(self, amount: float) -> float:
        """Seconds until `amount` tokens are available; infinite if they never will be."""
        missing = amount - self.level
        if missing <= _ROUNDING:
            return 0.0
        if amount > self.size + _ROUNDING or self.rate <= 0:
            return math.inf
        return missing / self.rate

    def take(self, amount: float) -> float:
        """Take `amount` tokens and return 0, or take none and return the seconds to wait."""
        wait = self.wait(amount)
        if not wait:
            self._level -= amount
        return wait

    def owe(self, amount: float) -> None:
        """Subtract tokens for past usage, even below zero."""
        self._level = self.level - amount

    def put_back(self, amount: float) -> None:
        """Return tokens that were taken and not used."""
        self._level = min(self.size, self.level + amount)
