"""The standard streams as a command finds them: closed, full, or read by nobody any more."""

from __future__ import annotations

import errno
import io
import os
import sys
from contextlib import suppress

# Errors of a write without space on the device; typer handles a reader that has left.
FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


def hold_streams() -> None:
    """Have all three be there, and take every text.

    One that the caller closed is empty, as /dev/null is. Else a socket would get its number, and a
    child what was meant for nobody.
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
    """Have what is still to be written go nowhere. Python tries again as it ends."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)
