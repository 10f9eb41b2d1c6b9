"""Files that only their owner can read: they hold contexts, answers and code of users."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from typing import Final

PRIVATE: Final = 0o600


def make_private(fd: int) -> None:
    """Restrict an open file to its owner, whatever its mode was.

    Devices and pipes stay as they are, and so do files whose mode the file system or the owner does
    not
    let this process change.
    """
    if stat.S_ISREG(os.fstat(fd).st_mode):
        with suppress(OSError):
            os.fchmod(fd, PRIVATE)
