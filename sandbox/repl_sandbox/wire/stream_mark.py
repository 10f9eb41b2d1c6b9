"""The mark on a session's pipes, by which a worker knows whether they are at their numbers.

It is a property of the open file, so it goes with each copy of the descriptor, and one short call
tells it; fstat(2), with what CPython makes of it, takes several times as long. The property is the
signal that tells of input and output where a program asks for one (fcntl(2), F_SETSIG). It is
SIGIO, as without a mark, so nothing else changes.
"""

from __future__ import annotations

import fcntl
from _signal import SIGIO
from contextlib import suppress
from typing import Final

ASK: Final = fcntl.F_GETSIG
MARK: Final = int(SIGIO)  # 0 where nobody has set it


def mark(fd: int) -> None:
    """Mark what is open at `fd`; where a kernel has no marks it stays as it is."""
    with suppress(OSError):
        fcntl.fcntl(fd, fcntl.F_SETSIG, MARK)


def is_marked(fd: int) -> bool:
    """Whether what is open at `fd` is marked; False also if nothing is."""
    try:
        return fcntl.fcntl(fd, ASK) == MARK
    except OSError:
        return False
