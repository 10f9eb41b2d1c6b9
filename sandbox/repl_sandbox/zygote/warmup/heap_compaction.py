"""`compact_heap`: new objects are allocated side by side, in fresh pools, and not in scattered
holes.

CPython's object allocator uses the first hole of a size (Objects/obmalloc.c). After the imports of
a template the holes are everywhere, and the objects that a session makes and frees in a cell lie on
some sixty pages, each of which it copies. With the holes taken they lie in new pools, one for each
size.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial

# For all versions from 3.10 on: POOL_SIZE, POOL_OVERHEAD, ALIGNMENT, SMALL_REQUEST_THRESHOLD.
_POOL, _HEAD = 1 << 14, 48
_STEP, _LARGEST = 16, 512
# The overhead of a `bytes`, one byte of it for the NUL.
_BYTES = sys.getsizeof(b"")
# The size of an `int`, 28 bytes and more.
_NUMBER = 2 * _STEP
# The maximum number of holes of one size. If no new pool comes after these, as in builds without
# this allocator, there are no holes to fill.
_MAX_HOLES = 1 << 14
# Adjacent objects by which a new pool is recognised: its first place alone may be a hole of
# another.
_IN_A_ROW = 3


def compact_heap() -> list[object]:
    """Take each free place in pools that hold something; they are freed with the returned list.

    It is half a MB of a template's memory, which its sessions share.
    """
    filled: list[object] = []
    for size in range(_STEP, _LARGEST + 1, _STEP):
        holes = _holes(size)
        if holes is None:
            return []
        filled += holes
    return filled


def _holes(size: int) -> list[object] | None:
    """Objects of `size` bytes in all holes of that size; None if the holes do not end."""
    make, row = _maker(size), 0
    # The integers that are compared here are allocated between the objects of that size.
    in_a_row = 1 if size == _NUMBER else _IN_A_ROW
    objects: list[object] = []
    for _ in range(_MAX_HOLES):
        block = make()
        objects.append(block)
        row = row + 1 if id(block) % _POOL == _HEAD + row * size else 0
        if row == in_a_row:
            del objects[-in_a_row:]
            return objects
    return None


def _maker(size: int) -> Callable[[], object]:
    """Return a function that allocates objects of `size` bytes, which nothing else reuses when
    freed.
    """
    if size == _STEP:
        return object
    if size == _NUMBER:
        return partial(complex, 1.0)
    return partial(bytes, size - _BYTES)
