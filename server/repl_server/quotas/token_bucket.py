"""`TokenBucket`: an allowance that refills as time passes."""

from __future__ import annotations

import math
from collections.abc import Callable

Clock = Callable[[], float]

# Levels are sums of products of floats: what is short by less than this is there.
_ROUNDING = 1e-9


class TokenBucket:
    """Holds up to `size` and gains `rate` a second; it begins full.

    Over any `t` seconds no more than `size + rate * t` can be taken from it with `take`. What was
    used before anybody could ask is booked with `owe`, and may be more than there was.
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
        """What is there now; below zero, what is owed."""
        now = self._clock()
        self._level = min(self.size, self._level + self.rate * (now - self._at))
        self._at = now
        return self._level

    @property
    def full(self) -> bool:
        """Whether it is as good as a new one."""
        return self.level >= self.size - _ROUNDING

    @property
    def whole(self) -> int:
        """How many whole units can be taken now."""
        return max(0, math.floor(self.level + _ROUNDING))

    def wait(self, amount: float) -> float:
        """Seconds until `amount` is there: 0 if it is, infinite if it never will be."""
        missing = amount - self.level
        if missing <= _ROUNDING:
            return 0.0
        if amount > self.size + _ROUNDING or self.rate <= 0:
            return math.inf
        return missing / self.rate

    def take(self, amount: float) -> float:
        """Take `amount` if it is there, and return 0; else return how long to wait for it."""
        wait = self.wait(amount)
        if not wait:
            self._level -= amount
        return wait

    def owe(self, amount: float) -> None:
        """Book what was used already, whether it was there or not."""
        self._level = self.level - amount

    def put_back(self, amount: float) -> None:
        """Return what was taken and not used."""
        self._level = min(self.size, self.level + amount)
