"""Marks on a session's standard streams: a worker sees whether a stream is at its number.

A mark is a property of the open file, so each copy of the descriptor has it, and one short call
reads it; fstat(2) with CPython's conversion takes several times as long. The property is the signal
that reports input and output on request (fcntl(2), F_SETSIG), which is SIGIO without a mark. The
marks of the other two streams are signals that are ignored by default.
"""

from __future__ import annotations

import fcntl
from _signal import SIGIO, SIGURG, SIGWINCH
from contextlib import suppress
from typing import Final

ASK: Final = fcntl.F_GETSIG
MARKS: Final = (int(SIGURG), int(SIGIO), int(SIGWINCH))  # by descriptor; an unmarked file has 0


def mark(fd: int, stream: int) -> None:
    """Mark the file open at `fd` as `stream`; a kernel without such marks leaves it as it is."""
    with suppress(OSError):
        fcntl.fcntl(fd, fcntl.F_SETSIG, MARKS[stream])


def is_marked(stream: int) -> bool:
    """Return whether `stream` is open at its number."""
    try:
        return fcntl.fcntl(stream, ASK) == MARKS[stream]
    except OSError:
        return False
