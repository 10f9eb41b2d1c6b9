"""Immortal objects (PEP 683): what a template holds, its sessions use without writing to it.

CPython keeps the count of references to an object in the object. So a session that only looks at
what it shares with its template writes to it, and each page it looks at is copied. Since CPython
3.12 an object is immortal by the value of that count, which then nobody changes.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Iterable, Iterator, Sequence
from types import CodeType, FrameType
from typing import Any

# In builds without the GIL it is of another form, and each object has a thread that owns it.
_KNOWN = (
    sys.implementation.name == "cpython" and sys.version_info >= (3, 12) and "t" not in sys.abiflags
)
# Counts from here on are of immortal objects: in all versions the sign bit of 32 bits says it.
_IMMORTAL = 1 << 31
# All addresses that Linux gives a process unasked, of 47 bits on x86-64 and of 48 on aarch64, in
# counts of 4 bytes.
_COUNTS = 1 << 46
# Since 3.14 there are flags in the upper half of the next 4 bytes, `ob_flags`, and the first says
# it too: by that the interpreter knows whether to count down a reference that it was given.
_FLAG = 1 << 16 if sys.version_info >= (3, 14) else 0


def immortalise() -> None:
    """Make the objects of this process immortal that the garbage collector can lead to.

    They will never be freed, nor what they refer to, so garbage is to be collected before. Where
    there are no immortal objects, nothing is done.
    """
    if not _KNOWN:
        return
    counts = (ctypes.c_uint32 * _COUNTS).from_address(0)
    immortal = counts[id(None) >> 2]
    found: Sequence[Any] = gc.get_objects()
    while found:
        mortal = []
        for each in found:
            place = id(each) >> 2
            # A frame may be that of a call which has yet to return, and to free what it holds.
            if counts[place] < _IMMORTAL and type(each) is not FrameType:
                counts[place] = immortal
                if _FLAG:
                    counts[place + 1] |= _FLAG
                mortal.append(each)
        found = [*gc.get_referents(*mortal), *_unseen(mortal)]


def _unseen(objects: Iterable[Any]) -> Iterator[Any]:
    """What `objects` refer to and the collector, which looks for cycles, is not told of."""
    for each in objects:
        if issubclass(type(each), dict):  # without asking `each`, which may be a proxy
            yield from dict.keys(each)
        elif type(each) is CodeType:
            yield from (each.co_consts, *each.co_consts, each.co_names, *each.co_names)
            yield from (each.co_filename, each.co_name, each.co_qualname)
