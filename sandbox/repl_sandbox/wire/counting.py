"""How many values a JSON text has, told before it is parsed. No I/O.

Whoever parses holds the interpreter, and with it the event loop of its process: some seconds for
the 64 MiB that a frame may have, where they are short numbers.
"""

from __future__ import annotations

import itertools
import re
from collections import deque

# To the next of what a value but the first stands behind, in no string, or to the end. Behind a key
# there is one of them, too.
_NEXT = re.compile(
    rb'(?:[^"\[{,]++|"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z))*+(?:[\[{,]|\Z)', re.DOTALL
)


# Bytes; what is shorter is not looked at.
_SHORT = 1 << 10


def more_values(data: bytes, most: int) -> bool:
    """Whether the JSON text `data` has more than `most` values, give or take two.

    Of one that has, no more is looked at than says so.
    """
    return len(data) > most and _found(data, most + 3) > most + 2


def values(data: bytes) -> int:
    """How many values the JSON text `data` has, about; of a short one, how many it may have."""
    return len(data) // 2 if len(data) < _SHORT else _found(data, len(data))


def _found(data: bytes, most: int) -> int:
    """How often the search finds something, up to `most` times; no line of Python for each."""
    numbered = zip(itertools.count(1), _NEXT.finditer(data), strict=False)
    last = deque(itertools.islice(numbered, most), maxlen=1)
    return last[0][0] if last else 0
