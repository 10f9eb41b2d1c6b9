"""Marks on a session's standard streams, by which a worker knows whether they are at their numbers.

A mark is a property of the open file, so it goes with each copy of the descriptor, and one short
call tells it; fstat(2), with what CPython makes of it, takes several times as long. The property is
the signal that tells of input and output where a program asks for one (fcntl(2), F_SETSIG), which
is SIGIO without a mark. Those of the other two streams are signals that are ignored by default.
"""

from __future__ import annotations

import fcntl
from _signal import SIGIO, SIGURG, SIGWINCH
from contextlib import suppress
from typing import Final

ASK: Final = fcntl.F_GETSIG
MARKS: Final = (int(SIGURG), int(SIGIO), int(SIGWINCH))  # by descriptor; 0 is that of other files


def mark(fd: int, stream: int) -> None:
    """Mark what is open at `fd` as `stream`; where a kernel has no marks it stays as it is."""
    with suppress(OSError):
        fcntl.fcntl(fd, fcntl.F_SETSIG, MARKS[stream])


def is_marked(stream: int) -> bool:
    """Whether `stream` is open at its number."""
    try:
        return fcntl.fcntl(stream, ASK) == MARKS[stream]
    except OSError:
        return False
