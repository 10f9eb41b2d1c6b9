"""Contents of uploads, and where they are kept."""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress

MIB = 1 << 20


def content(size: int, seed: int = 0) -> bytes:
    return hashlib.shake_128(f"{seed}".encode()).digest(size)


def name(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def memory_files() -> set[int]:
    """The inodes of uploads' files in memory that this process, in which servers are, has open.

    Servers of other tests may run until the end of the process: compare with those before.
    """
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the one that lists them
            path = f"/proc/self/fd/{fd}"
            if "repl-upload" in os.readlink(path):
                found.add(os.stat(path).st_ino)
    return found
