"""A descriptor that a worker has for its copies among those that its code may have."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from typing import Final

# So far below the highest number that code may open they lie: which it hardly takes.
_BELOW: Final = 8

Identity = tuple[int, int]


class Apart:
    """`fd` at one of the highest numbers, and which file's that is."""

    def __init__(self, fd: int) -> None:
        """OSError: there is no number left. `fd` is closed in either case."""
        try:
            least = os.sysconf("SC_OPEN_MAX") - _BELOW
            self.fd = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, least)
        finally:
            os.close(fd)
        self.identity = identity(self.fd)

    def close(self) -> None:
        """Close it, unless code has done so, and has another file by that number."""
        with suppress(OSError):
            if identity(self.fd) == self.identity:
                os.close(self.fd)


def identity(fd: int) -> Identity:
    """Which file that is; OSError if it is closed."""
    status = os.fstat(fd)
    return status.st_dev, status.st_ino
