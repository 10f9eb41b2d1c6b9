"""The host's end of the shortcut, see `wire.shortcut`: two pipes to one worker."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from ..wire.shortcut import BELL, READ

# Bytes that each holds: there are never more than a message and some bells. An ordinary user may
# have 1,024 pipes of the usual size (pipe(7), "pipe-user-pages-soft"), which are for output.
_SIZE = 1 << 14


class Shortcut:
    """Cells go out, and what they came to comes in. The host's ends do not block.

    Attributes:
        results: the descriptor to wait for, and to read.
        read: all that there is in it, as of os.read.
        write: send a message of up to `wire.shortcut.MOST` bytes. OSError: the worker is gone, or
            does not read.
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
        self.read: Callable[[], bytes] = partial(os.read, self.results, READ)
        self.write: Callable[[bytes], int] = partial(os.write, self._commands)
        for fd in self._ours:
            os.set_blocking(fd, False)
            with suppress(OSError):  # it is smaller already, and there is no room for more
                fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, _SIZE)

    @property
    def ends(self) -> tuple[int, ...]:
        """The host's descriptors."""
        return self._ours

    def ring(self) -> None:
        """Tell the worker that its socket has something. One that does not read is not told."""
        with suppress(OSError):
            self.write(BELL)

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
