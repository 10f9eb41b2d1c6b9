"""Immortal objects (PEP 683): sessions use the template's objects without writing to them.

CPython keeps an object's reference count in the object. So a session that only reads an object
shared with its template writes to it, and copies its page. Since CPython 3.12 an object is immortal
by the value of that count, which then never changes.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Iterable, Iterator, Sequence
from types import CodeType, FrameType
from typing import Any

# Builds without the GIL have another layout, and each object has an owning thread.
_KNOWN = (
    sys.implementation.name == "cpython" and sys.version_info >= (3, 12) and "t" not in sys.abiflags
)
# The counts of immortal objects: in all versions the sign bit of 32 bits marks them.
_IMMORTAL = 1 << 31
# All addresses that Linux gives a process by default, of 47 bits on x86-64 and of 48 on aarch64, in
# counts of 4 bytes.
_COUNTS = 1 << 46
# Since 3.14 there are flags in the upper half of the next 4 bytes, `ob_flags`, and the first marks
# it too: by it the interpreter decides whether to decrement the count.
_FLAG = 1 << 16 if sys.version_info >= (3, 14) else 0


def immortalise() -> None:
    """Make the objects of this process immortal that the garbage collector can reach.

    They are never freed, nor what they refer to, so collect garbage before. Does nothing in
    versions without immortal objects.
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
            # A frame may belong to a call that has yet to return and free its locals.
            if counts[place] < _IMMORTAL and type(each) is not FrameType:
                counts[place] = immortal
                if _FLAG:
                    counts[place + 1] |= _FLAG
                mortal.append(each)
        found = [*gc.get_referents(*mortal), *_unseen(mortal)]


def _unseen(objects: Iterable[Any]) -> Iterator[Any]:
    """Objects that `objects` refer to and that the collector, which looks for cycles, does not
    track.
    """
    for each in objects:
        if issubclass(type(each), dict):  # without an attribute of `each`, which may be a proxy
            yield from dict.keys(each)
        elif type(each) is CodeType:
            yield from (each.co_consts, *each.co_consts, each.co_names, *each.co_names)
            yield from (each.co_filename, each.co_name, each.co_qualname)
