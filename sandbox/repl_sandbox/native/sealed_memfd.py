"""Sealed memfds: files in memory that no process can change any more."""

from __future__ import annotations

import fcntl

# fcntl(2), Linux 5.1; not in the module. F_SEAL_WRITE would wait until the kernel holds no page of
# the file, and give up with EBUSY; this seal does not, and no process has the file mapped for
# writing.
_F_SEAL_FUTURE_WRITE = 0x10


def seal(fd: int) -> None:
    """Seal a memfd against every later change."""
    seals = _F_SEAL_FUTURE_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
