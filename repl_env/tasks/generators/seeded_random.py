"""Choices that are the same on every system and in every version of Python.

Of `random.Random`, only what `random()` returns for a given seed is promised to stay as it is
(the library's "Notes on Reproducibility"), so every choice here is made of that.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class SeededRandom:
    """A source of choices, seeded by `key`."""

    def __init__(self, *key: str | int) -> None:
        digest = hashlib.sha256("/".join(map(str, key)).encode()).digest()
        self.real = random.Random(int.from_bytes(digest, "big")).random

    def below(self, limit: int) -> int:
        """A number from 0 to `limit` - 1."""
        return int(self.real() * limit)

    def pick(self, items: Sequence[T]) -> T:
        """One of `items`."""
        return items[int(self.real() * len(items))]

    def some(self, items: Sequence[T], count: int) -> list[T]:
        """`count` different ones of `items`, in any order."""
        left = list(items)
        for place in range(count):
            other = place + self.below(len(left) - place)
            left[place], left[other] = left[other], left[place]
        return left[:count]

    def places(self, count: int, limit: int) -> list[int]:
        """`count` different numbers from 0 to `limit` - 1, for a `limit` well above `count`."""
        found: dict[int, None] = {}
        while len(found) < count:
            found[self.below(limit)] = None
        return list(found)
