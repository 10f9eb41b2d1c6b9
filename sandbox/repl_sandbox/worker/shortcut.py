"""The worker's end of the shortcut, see `wire.shortcut`: one pipe to read from, one to write to."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from functools import partial

# So many of the numbers that there may be are the last ones. The kernel has a place for each number
# below the highest that is open; it has a thousand for the worker's socket.
_LAST, _MOST = 8, 1 << 10


class Shortcut:
    """Two descriptors, at the end of the numbers that there may be, out of the way of code.

    Attributes:
        commands: the one to read from.
        read, write: as of os.read and os.write; a write of up to `wire.shortcut.MOST` is whole.
    """

    def __init__(self, commands: int, results: int) -> None:
        """The two are closed, and are this one's under other numbers.

        Raises:
            OSError: those are taken. Both are closed all the same.
        """
        lowest = min(os.sysconf("SC_OPEN_MAX"), _MOST) - _LAST
        self._fds: list[int] = []
        try:
            for fd in (commands, results):
                self._fds.append(fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, lowest))
        except OSError:
            self.close()
            raise
        finally:
            os.close(commands)
            os.close(results)
        self.commands, results = self._fds
        self.read: Callable[[int], bytes] = partial(os.read, self.commands)
        self.write: Callable[[bytes], int] = partial(os.write, results)

    def close(self) -> None:
        """Let go of both."""
        fds, self._fds = self._fds, []
        for fd in fds:
            os.close(fd)
