"""Requests to the kernel and the C library's allocator about this process's memory."""

from __future__ import annotations

import ctypes
import os
from typing import Final

# uapi/asm-generic/mman-common.h
_MADV_DONTNEED: Final = 4
_MADV_HUGEPAGE: Final = 14
_MADV_NOHUGEPAGE: Final = 15

_libc = ctypes.CDLL(None)
_libc.malloc.restype = ctypes.c_void_p


def advise_huge_pages(address: int, size: int) -> None:
    """madvise(2) with MADV_HUGEPAGE for the whole pages from `address` on, before their first use.

    This is advice: where the kernel has no such pages or they are switched off, nothing happens.
    """
    _madvise(address, size, _MADV_HUGEPAGE)


def _madvise(address: int, size: int, *advices: int) -> None:
    """madvise(2) for the whole pages from `address` on. A refusal of advice is no error."""
    page = os.sysconf("SC_PAGE_SIZE")
    first, last = -(-address // page) * page, (address + size) // page * page
    if last > first:
        for advice in advices:
            _libc.madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), advice)


def trim_heap() -> None:
    """malloc_trim(3): return freed memory to the kernel, where the C library can (glibc)."""
    try:
        trim = _libc.malloc_trim
    except AttributeError:
        return
    trim(ctypes.c_size_t(0))


def keep_freed(size: int) -> None:
    """Make the allocator keep freed blocks of up to `size` bytes for later requests.

    glibc returns a block to the kernel if it is larger than the largest that was freed before, 128
    KiB at first, and free memory at the end of its heap beyond twice that: mallopt(3),
    M_MMAP_THRESHOLD. Other C libraries have rules of their own.
    """
    _libc.free(ctypes.c_void_p(_libc.malloc(ctypes.c_size_t(size))))


def empty_end(size: int) -> None:
    """Keep `size` bytes or more free at the end of the heap, without pages; small blocks go there.

    Where glibc uses huge pages, `malloc_trim` shortens a heap by whole ones only, and the first
    byte of the next would allocate all of it. Elsewhere, and in glibc before 2.33, nothing happens.
    """
    try:
        info = _libc.mallinfo2
    except AttributeError:
        return
    info.restype = _Mallinfo2
    keep_freed(size)  # the heap has grown by the missing part
    free = info().keepcost - os.sysconf("SC_PAGE_SIZE")
    if free > 0 and (block := _libc.malloc(ctypes.c_size_t(free))) is not None:
        _madvise(block, free, _MADV_DONTNEED, _MADV_NOHUGEPAGE)
        _libc.free(ctypes.c_void_p(block))


class _Mallinfo2(ctypes.Structure):
    """struct mallinfo2 of malloc.h."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    )
