"""The open descriptors of a process, to be compared with an earlier state."""

from __future__ import annotations

import contextlib
import os


def opened(pid: int | str) -> frozenset[str]:
    """The numbers of the descriptors of a process, except networks that a zygote keeps for
    sessions.

    Those are kept on purpose, and bounded: `security/jail/test_networks.py`.
    """
    folder = f"/proc/{pid}/fd"
    found = set()
    for name in os.listdir(folder):
        # The listing itself holds one descriptor, which is gone when its link is read.
        with contextlib.suppress(FileNotFoundError):
            target = os.readlink(f"{folder}/{name}")
            if not target.startswith("net:") and "/net/" not in target:
                found.add(name)
    return frozenset(found)
