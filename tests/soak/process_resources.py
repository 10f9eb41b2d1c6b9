"""Resources of this process, its zygote and their sessions, before and after a soak."""

from __future__ import annotations

import ctypes
import gc
import os
import re
import sys
from pathlib import Path
from typing import NamedTuple

import psutil

from tests.descriptors import opened


class Belongings(NamedTuple):
    """Resources that must be the same again once the sessions are closed."""

    host_descriptors: tuple[str, ...]
    zygote_descriptors: tuple[str, ...]
    host_mounts: int
    zygote_mounts: int
    processes: int
    folders: tuple[str, ...]


def belongings(zygote: int, folder: str) -> Belongings:
    """Return the current resources; `zygote` is a process id, `folder` that of the sessions."""
    gc.collect()
    return Belongings(
        descriptors("self"),
        descriptors(str(zygote)),
        mounts("self"),
        mounts(str(zygote)),
        len(psutil.Process().children(recursive=True)),
        tuple(sorted(os.listdir(folder))) if folder else (),
    )


class _Mallinfo(ctypes.Structure):
    """mallinfo2(3)."""

    _names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in _names.split()]


_libc = ctypes.CDLL(None)
_libc.mallinfo2.restype = _Mallinfo
# Bytes of one of Python's own blocks, which are of 16 to 512: about the mean in this process.
_BLOCK = 64


def in_use() -> int:
    """Approximate number of allocated bytes of this process.

    Its pages say less: allocators keep freed memory, each thread its own, and a page counts as used
    for a few bytes. They grew by 8 MiB in a soak without a leak.
    """
    gc.collect()
    told = _libc.mallinfo2()
    return int(told.uordblks + told.hblkhd) + _BLOCK * sys.getallocatedblocks()


def anonymous(pid: str) -> int:
    """Bytes of its own that the process has in memory; 0 if it has ended, or is not this user's.

    Those that its forks share count as well: whether they do goes with what each has written since.
    """
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (PermissionError, FileNotFoundError, ProcessLookupError):
        return 0
    sizes = dict(re.findall(r"^(RssAnon|VmSwap):\s*(\d+) kB$", status, re.MULTILINE))
    return 1024 * sum(map(int, sizes.values()))


def processes_of(init: int) -> list[psutil.Process]:
    """A session's init and all below it, as the kernel lists them: also those not yet reaped."""
    first = psutil.Process(init)
    return [first, *first.children(recursive=True)]


def descriptors(pid: str) -> tuple[str, ...]:
    """The numbers of the open descriptors."""
    return tuple(sorted(opened(pid)))


def mounts(pid: str) -> int:
    """The number of visible mounts."""
    return len(Path(f"/proc/{pid}/mountinfo").read_text().splitlines())
