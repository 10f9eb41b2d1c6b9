"""The standard streams of a command, which may be closed, full, or without a reader."""

from __future__ import annotations

import errno
import io
import os
import sys
from contextlib import suppress

# Errors of a write without space on the device; typer handles a reader that has left.
FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


def hold_streams() -> None:
    """Open the streams that are closed, and make all of them accept every text.

    A closed stream becomes /dev/null. Otherwise a socket would get its number, and receive the
    output of a child process.
    """
    for fd in range(3):
        with suppress(OSError):
            os.fstat(fd)
            continue
        os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest number that is free
    sys.stdin = sys.stdin or os.fdopen(0, encoding="utf-8", closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", encoding="utf-8", closefd=False)
    for stream in (sys.stdout, sys.stderr):
        # An answer that was paid for is not lost to a terminal that has no sign for a part of it.
        # The second is Python's where the locale is that of C, as in cron and in containers.
        if isinstance(stream, io.TextIOWrapper) and stream.errors in ("strict", "surrogateescape"):
            stream.reconfigure(errors="replace")


def give_up_stdout() -> None:
    """Discard pending output, which Python would try to write again as it exits."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)
