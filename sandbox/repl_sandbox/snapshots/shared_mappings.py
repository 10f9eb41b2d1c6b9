"""Shared memory mappings of this process: all snapshots see what is written there.

Writing to one changes no time of a file in tmpfs either.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import functools
import os
import stat
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from typing import Final

from .descriptors.open_descriptors import OpenDescriptor

# Taken once: code may replace those of the module.
_open, _close = os.open, os.close

_GONE = " (deleted)"
_NAMELESS = "/dev/zero"  # the kernel's names for mappings without a file
_LOCKS = "/dev/shm/sem."  # shared locks, like other locks, stay as they are
_MAX_NAMED = 20
_PIECE = 1 << 14  # bytes; the kernel gives a page at a time
_LONGEST: Final = 4096 + len(_GONE)  # PATH_MAX
# uapi/linux/fs.h of Linux 6.11: PROCMAP_QUERY, and the query for the first writable shared mapping
# at or after an address.
_QUERY: Final = 0xC068_6611
_SOUGHT: Final = 0x02 | 0x08 | 0x10


class _Query(ctypes.Structure):
    # struct procmap_query
    _fields_ = (
        *((name, ctypes.c_uint64) for name in ("size", "flags", "address", "start", "end")),
        *((name, ctypes.c_uint64) for name in ("_access", "_page_size", "_offset", "_inode")),
        *((name, ctypes.c_uint32) for name in ("_major", "_minor", "name_size", "_build_id_size")),
        *((name, ctypes.c_uint64) for name in ("name_at", "_build_id_at")),
    )


def lost(own: Collection[int], workspace: str = "") -> list[str]:
    """Names of shared memory, which a snapshot shares instead of having a copy.

    Without mappings at the addresses `own`, and without the files of `workspace`, which are
    restored.
    """
    names = []
    for start, path in _shared() or ():
        inside = workspace and path.startswith(f"{workspace}/")
        if start not in own and not inside and not path.startswith(_LOCKS):
            path = path.removesuffix(_GONE)
            named = "" if path == _NAMELESS else f" {path!a}"
            names.append(f"shared memory{named}, which is not copied")
    more = len(names) - _MAX_NAMED
    return names if more <= 0 else [*names[:_MAX_NAMED], f"{more:,} more pieces of shared memory"]


def touch(workspace: str, descriptors: Iterable[OpenDescriptor]) -> None:
    """Change the times of the mapped files of `workspace`, because they may have changed.

    A process that maps a file usually has it open as well, as Python's mmap does.
    """
    inside = f"{workspace}/"
    paths = {descriptor.path for descriptor in descriptors if _may_be_mapped(descriptor)}
    mapped = _shared() if paths else None
    if mapped is not None:
        paths = {path for _, path in mapped}
    for path in paths:
        if path.startswith(inside):
            with suppress(OSError):  # it is gone
                status = os.stat(path, follow_symlinks=False)
                times = status.st_atime_ns, status.st_mtime_ns
                os.utime(path, ns=times, follow_symlinks=False)


def _may_be_mapped(descriptor: OpenDescriptor) -> bool:
    return descriptor.kind == stat.S_IFREG and descriptor.flags & os.O_ACCMODE == os.O_RDWR


def _shared() -> list[tuple[int, str]] | None:
    """Writable shared mappings: address and file. None if they cannot be read."""
    try:
        fd = _open("/proc/self/maps", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:  # unreadable in tier "confined" for a process that took over
        return None
    try:
        with suppress(OSError):  # of older kernels
            return _searched(fd)
        maps = _read(fd)
    except OSError:
        return None
    finally:
        _close(fd)
    # Usually one of more than a hundred lines. The others are not parsed: this process was forked
    # just now, and copies each page that it writes to.
    return [found for access in (b"w-s", b"wxs") for found in _with(access, maps)]


def _searched(maps: int) -> list[tuple[int, str]]:
    """As `_shared`, by a search in the kernel: reading all mappings takes 0.3 ms."""
    query, name = _query()
    found: list[tuple[int, str]] = []
    query.address = 0
    while True:
        query.name_size = _LONGEST
        try:
            fcntl.ioctl(maps, _QUERY, query)
        except OSError as error:
            if error.errno == errno.ENOENT:
                return found
            raise
        found.append((query.start, os.fsdecode(name.value) if query.name_size else ""))
        query.address = query.end


@functools.cache
def _query() -> tuple[_Query, ctypes.Array[ctypes.c_char]]:
    # Once, in the template: the caller was forked just now.
    name = ctypes.create_string_buffer(_LONGEST)
    size = ctypes.sizeof(_Query)
    return _Query(size=size, flags=_SOUGHT, name_at=ctypes.addressof(name)), name


def _read(maps: int) -> bytes:
    pieces = []
    while piece := os.read(maps, _PIECE):
        pieces.append(piece)
    return b"".join(pieces)


def _with(access: bytes, maps: bytes) -> Iterator[tuple[int, str]]:
    """The address of a mapping with this access, and its file."""
    at = -1
    while (at := maps.find(access, at + 1)) >= 0:
        start, end = maps.rfind(b"\n", 0, at) + 1, maps.find(b"\n", at)
        span, allowed, _, _, _, *path = maps[start:end].split(None, 5)
        if allowed.endswith(access):  # and it is not just a file of that name
            yield int(span.partition(b"-")[0], 16), os.fsdecode(path[0]) if path else ""
        at = end
