"""Files for their owner alone: contexts, answers and code of users are in them."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from typing import Final

PRIVATE: Final = 0o600


def make_private(fd: int) -> None:
    """Let nobody but its owner read or write an open file, whatever it was before.

    Devices and pipes stay as they are, and so does what a file system or its owner does not let
    us change.
    """
    if stat.S_ISREG(os.fstat(fd).st_mode):
        with suppress(OSError):
            os.fchmod(fd, PRIVATE)
