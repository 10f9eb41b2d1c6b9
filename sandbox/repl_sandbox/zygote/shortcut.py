"""The host's end of the shortcut, see `wire.shortcut`: two pipes to one worker."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress

from ..wire.shortcut import BELL

# Bytes that each holds: there are never more than a message and some bells. An ordinary user may
# have 1,024 pipes of the usual size (pipe(7), "pipe-user-pages-soft"), which are for output.
_SIZE = 1 << 14

_write = os.write


class Shortcut:
    """Cells go out, and what they came to comes in. The host's ends do not block.

    Attributes:
        results: the descriptor to wait for, and to read.
        theirs: those of the worker, commands and results, until they have been sent.
    """

    def __init__(self) -> None:
        """OSError: this process may open no more descriptors."""
        self.theirs: tuple[int, ...] = ()
        self._ours: tuple[int, ...] = ()
        theirs, self._commands = os.pipe2(os.O_CLOEXEC)
        self.theirs, self._ours = (theirs,), (self._commands,)
        try:
            self.results, theirs = os.pipe2(os.O_CLOEXEC)
        except OSError:
            self.close()
            raise
        self.theirs, self._ours = (*self.theirs, theirs), (self._commands, self.results)
        for fd in self._ours:
            os.set_blocking(fd, False)
            with suppress(OSError):  # it is smaller already, and there is no room for more
                fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, _SIZE)

    @property
    def ends(self) -> tuple[int, ...]:
        """The host's descriptors."""
        return self._ours

    def send(self, message: bytes) -> bool:
        """Send a message of up to `wire.shortcut.MOST` bytes; False if it could not be."""
        try:
            _write(self._commands, message)
        except OSError:  # a worker that is gone, or does not read
            return False
        return True

    def ring(self) -> None:
        """Tell the worker that its socket has something. One that does not read is not told."""
        self.send(BELL)

    def close_theirs(self) -> None:
        """They have been sent, or will not be."""
        theirs, self.theirs = self.theirs, ()
        for fd in theirs:
            os.close(fd)

    def close(self) -> None:
        """Let go of all."""
        self.close_theirs()
        ours, self._ours = self._ours, ()
        for fd in ours:
            os.close(fd)
