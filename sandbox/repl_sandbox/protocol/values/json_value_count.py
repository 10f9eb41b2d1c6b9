"""Count of the values in a JSON text, before parsing. No I/O.

A parser holds the interpreter and thereby the event loop of its process: some seconds for the 64
MiB of a frame that is full of short numbers.
"""

from __future__ import annotations

import itertools
import re
from collections import deque

# Matches up to the next delimiter (outside strings) that a further value follows, or to the end. A
# delimiter precedes each key, too.
_NEXT = re.compile(
    rb'(?:[^"\[{,]++|"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z))*+(?:[\[{,]|\Z)', re.DOTALL
)


def more_values(data: bytes, limit: int) -> bool:
    """Return whether the JSON text `data` has more than `limit` values, plus or minus two.

    Counting stops as soon as the limit is exceeded.
    """
    return len(data) > limit and values(data, limit) is None


def values(data: bytes, limit: int) -> int | None:
    """Return about how many values the JSON text `data` has; None for more than `limit`."""
    # Iterators in C: no Python code runs for each value.
    numbered = zip(itertools.count(1), _NEXT.finditer(data), strict=False)
    last = deque(itertools.islice(numbered, limit + 3), maxlen=1)
    found = last[0][0]
    return found if found < limit + 3 else None
