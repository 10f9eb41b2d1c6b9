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


def more_values(data: bytes, most: int) -> bool:
    """Whether the JSON text `data` has more than `most` values, give or take two.

    Of one that has, no more is looked at than says so.
    """
    return len(data) > most and values(data, most) is None


def values(data: bytes, most: int) -> int | None:
    """How many values the JSON text `data` has, likewise; None for more than `most`."""
    # No line of Python for each.
    numbered = zip(itertools.count(1), _NEXT.finditer(data), strict=False)
    last = deque(itertools.islice(numbered, most + 3), maxlen=1)
    found = last[0][0]
    return found if found < most + 3 else None
