"""Fresh pools: what is made from here on lies side by side, and not where there was room.

CPython's allocator of objects puts each into the first hole of its size (Objects/obmalloc.c). After
all that a template has imported these are everywhere, and what a session makes and frees in a cell
lies on some sixty pages, each of which it copies for that. With the holes taken it is on new pools,
one for each size.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial

# Of all versions from 3.10 on: POOL_SIZE, POOL_OVERHEAD, ALIGNMENT, SMALL_REQUEST_THRESHOLD.
_POOL, _HEAD = 1 << 14, 48
_STEP, _LARGEST = 16, 512
# A `bytes` takes so many bytes besides its own, one of them for the NUL.
_BYTES = sys.getsizeof(b"")
# What an `int` takes, 28 bytes and more.
_NUMBER = 2 * _STEP
# Holes of one size: more than any template has. Where no new pool comes after so many, as in builds
# without this allocator, there are none to fill.
_MOST = 1 << 14
# New ones in a row, by which a new pool is known: its first place alone may be a hole of another.
_IN_A_ROW = 3


def compact_heap() -> list[object]:
    """Take each place that is free in a pool which holds something; freed with the list.

    It is half a MB of a template's, that its sessions share.
    """
    taken: list[object] = []
    for size in range(_STEP, _LARGEST + 1, _STEP):
        holes = _holes(size)
        if holes is None:
            return []
        taken += holes
    return taken


def _holes(size: int) -> list[object] | None:
    """Objects of so many bytes in all holes for such; None if that does not come to an end."""
    make, row = _maker(size), 0
    # The numbers that are compared here take turns with what is made of that size.
    in_a_row = 1 if size == _NUMBER else _IN_A_ROW
    taken: list[object] = []
    for _ in range(_MOST):
        made = make()
        taken.append(made)
        row = row + 1 if id(made) % _POOL == _HEAD + row * size else 0
        if row == in_a_row:
            del taken[-in_a_row:]
            return taken
    return None


def _maker(size: int) -> Callable[[], object]:
    """What makes objects of so many bytes that are of no use to others once they are free."""
    if size == _STEP:
        return object
    if size == _NUMBER:
        return partial(complex, 1.0)
    return partial(bytes, size - _BYTES)
