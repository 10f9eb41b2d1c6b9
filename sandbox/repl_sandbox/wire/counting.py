"""How many values a JSON text has, told before it is parsed. No I/O.

Whoever parses holds the interpreter, and with it the event loop of its process: some seconds for
the 64 MiB that a frame may have, where they are short numbers.
"""

from __future__ import annotations

import itertools
import re

# To the next of what a value but the first stands behind, in no string, or to the end. Behind a key
# there is one of them, too.
_NEXT = re.compile(
    rb'(?:[^"\[{,]++|"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z))*+(?:[\[{,]|\Z)', re.DOTALL
)


def more_values(data: bytes, most: int) -> bool:
    """Whether the JSON text `data` has more than `most` values, give or take two.

    Of one that has, no more is looked at than says so.
    """
    if len(data) <= most:
        return False
    return next(itertools.islice(_NEXT.finditer(data), most + 2, None), None) is not None
