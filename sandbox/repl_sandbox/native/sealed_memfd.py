"""A file in memory that nobody can change any more."""

from __future__ import annotations

import fcntl

# fcntl(2), Linux 5.1; not in the module. F_SEAL_WRITE would wait until nobody in the kernel holds a
# page of the file, and give up with EBUSY; this does not, and nobody has it mapped to write.
_F_SEAL_FUTURE_WRITE = 0x10


def seal(fd: int) -> None:
    """Have the kernel refuse every later change of a file in memory."""
    seals = _F_SEAL_FUTURE_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
