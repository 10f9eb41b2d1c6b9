"""What the kernel and the C library's allocator are asked to do with this process's memory."""

from __future__ import annotations

import ctypes
import os
from typing import Final

from .libc import Call

# uapi/asm-generic/mman-common.h
_MADV_HUGEPAGE: Final = 14
_MADV_POPULATE_WRITE: Final = 23

_libc = ctypes.CDLL(None)
_libc.malloc.restype = ctypes.c_void_p


def advise_huge_pages(address: int, size: int) -> None:
    """madvise(2) with MADV_HUGEPAGE for the whole pages from `address` on: before they are used.

    An advice: where the kernel has no such pages or they are switched off, nothing happens.
    """
    page = os.sysconf("SC_PAGE_SIZE")
    first, last = -(-address // page) * page, (address + size) // page * page
    if last > first:
        _libc.madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), _MADV_HUGEPAGE)


_process_madvise: Final = Call(
    "process_madvise", ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_uint
)


def populate(runs: int, count: int) -> None:
    """process_madvise(2) on this process, MADV_POPULATE_WRITE: have pages as if written to.

    `runs` is the address of an array of `count` struct iovec. OSError (EINVAL) where the kernel
    takes this advice from no process, not even about itself, as before Linux 6.13.
    """
    me = os.pidfd_open(os.getpid())
    try:
        if _process_madvise.raw(me, runs, count, _MADV_POPULATE_WRITE, 0) == -1:
            _process_madvise.failed()
    finally:
        os.close(me)


def trim_heap() -> None:
    """malloc_trim(3): give the kernel back what was freed, where the C library can (glibc)."""
    try:
        trim = _libc.malloc_trim
    except AttributeError:
        return
    trim(ctypes.c_size_t(0))


def keep_freed(size: int) -> None:
    """Have the allocator keep blocks of up to `size` bytes that are freed for who asks next.

    glibc gives a block back to the kernel if it is larger than the largest that was freed before,
    128 KiB at first, and what lies free at the end of its heap beyond twice that: mallopt(3),
    M_MMAP_THRESHOLD. Other C libraries have rules of their own.
    """
    _libc.free(ctypes.c_void_p(_libc.malloc(ctypes.c_size_t(size))))
