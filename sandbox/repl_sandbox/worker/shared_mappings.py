"""Shared memory mappings of this process: all snapshots see what is written there.

Writing to one changes no time of a file in tmpfs either.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import functools
import mmap
import os
import stat
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from typing import Final, NamedTuple

from .lost_resources import OpenDescriptor

# Taken once: code may replace those of the module.
_open, _close = os.open, os.close
_libc = ctypes.CDLL(None, use_errno=True)
_mmap, _write = _libc.mmap, _libc.write
_mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_mmap.restype = ctypes.c_void_p
_write.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t]
_FAILED = ctypes.c_void_p(-1).value
_MAP_FIXED = 0x10  # uapi/linux/mman.h

_GONE = " (deleted)"
_NAMELESS = "/dev/zero"  # the kernel's names for mappings without a file
_LOCKS = "shm/sem."  # shared locks, like other locks, stay as they are
_MAX_NAMED = 20
_PIECE = 1 << 14  # bytes; the kernel gives a page at a time
_LONGEST: Final = 4096 + len(_GONE)  # PATH_MAX
# uapi/linux/fs.h of Linux 6.11: PROCMAP_QUERY, and the query for the first writable shared mapping
# at or after an address.
_QUERY: Final = 0xC068_6611
_SHARED, _WRITABLE, _OR_NEXT = 0x08, 0x02, 0x10
_PROTECTION: Final = 0x07  # of its flags: as in mmap(2)


class _Query(ctypes.Structure):
    # struct procmap_query
    _fields_ = (
        *((name, ctypes.c_uint64) for name in ("size", "flags", "address", "start", "end")),
        *((name, ctypes.c_uint64) for name in ("access", "_page_size", "offset", "_inode")),
        *((name, ctypes.c_uint32) for name in ("_major", "_minor", "name_size", "_build_id_size")),
        *((name, ctypes.c_uint64) for name in ("name_at", "_build_id_at")),
    )


class SharedMapping(NamedTuple):
    """A shared mapping: its addresses, the place in its file, its protection as in mmap(2)."""

    start: int
    end: int
    offset: int
    protection: int
    path: str  # "" or the kernel's name for one without a file

    @property
    def is_writable(self) -> bool:
        """True if it can be written."""
        return bool(self.protection & mmap.PROT_WRITE)

    def is_below(self, folder: str) -> bool:
        """Return whether it is of a file below `folder`."""
        return bool(folder) and self.path.startswith(f"{folder}/")


def lost(own: Collection[int], workspace: str = "") -> list[str]:
    """Names of shared memory, which a snapshot shares instead of having a copy.

    Without mappings at the addresses `own`, and without the files of `workspace`, which are
    restored.
    """
    return names(find(own) or (), workspace)


def find(own: Collection[int], *, writable: bool = True) -> list[SharedMapping] | None:
    """The shared mappings of this process, but for those at the addresses `own`; None if they
    cannot be read.
    """
    found = _shared(writable=writable)
    return None if found is None else [each for each in found if each.start not in own]


def names(mappings: Iterable[SharedMapping], *folders: str) -> list[str]:
    """Name those of `mappings` that can be written, and are not of files below `folders`."""
    names = []
    for mapping in mappings:
        inside = any(map(mapping.is_below, folders)) or _LOCKS in mapping.path
        if mapping.is_writable and not inside:
            path = mapping.path.removesuffix(_GONE)
            named = "" if path == _NAMELESS else f" {path!a}"
            names.append(f"shared memory{named}, which is not copied")
    more = len(names) - _MAX_NAMED
    return names if more <= 0 else [*names[:_MAX_NAMED], f"{more:,} more pieces of shared memory"]


def move(mapping: SharedMapping, path: str) -> None:
    """Map file `path` in the place of `mapping`, as that was.

    One whose name is gone is made, with the content that is mapped, and loses its name as well.

    Raises:
        OSError: the file cannot be opened or mapped.
    """
    is_gone = path.endswith(_GONE)
    access = os.O_RDWR if is_gone or mapping.is_writable else os.O_RDONLY
    path = path.removesuffix(_GONE)
    fd = _open(path, access | os.O_CLOEXEC | (os.O_CREAT | os.O_EXCL if is_gone else 0), 0o600)
    try:
        if is_gone:
            os.unlink(path)
            _copy(mapping, fd)
        place = mapping.start, mapping.end - mapping.start, mapping.protection
        if _mmap(*place, mmap.MAP_SHARED | _MAP_FIXED, fd, mapping.offset) == _FAILED:
            raise OSError(ctypes.get_errno(), "it cannot be mapped")
    finally:
        _close(fd)


def _copy(mapping: SharedMapping, fd: int) -> None:
    """Write the content of `mapping` to file `fd`, as far as the mapped file goes: write(2) fails
    where a read would be a signal.
    """
    os.lseek(fd, mapping.offset, os.SEEK_SET)
    at = mapping.start
    while at < mapping.end:
        written = _write(fd, at, mapping.end - at)
        if written < 0 and ctypes.get_errno() != errno.EFAULT:
            raise OSError(ctypes.get_errno(), "it cannot be copied")
        if written <= 0:
            break
        at += written


def touch(workspace: str, descriptors: Iterable[OpenDescriptor]) -> None:
    """Change the times of the mapped files of `workspace`, because they may have changed.

    A process that maps a file usually has it open as well, as Python's mmap does.
    """
    inside = f"{workspace}/"
    paths = {descriptor.path for descriptor in descriptors if _may_be_mapped(descriptor)}
    mapped = _shared() if paths else None
    if mapped is not None:
        paths = {mapping.path for mapping in mapped}
    for path in paths:
        if path.startswith(inside):
            with suppress(OSError):  # it is gone
                status = os.stat(path, follow_symlinks=False)
                times = status.st_atime_ns, status.st_mtime_ns
                os.utime(path, ns=times, follow_symlinks=False)


def _may_be_mapped(descriptor: OpenDescriptor) -> bool:
    return descriptor.kind == stat.S_IFREG and descriptor.flags & os.O_ACCMODE == os.O_RDWR


def _shared(*, writable: bool = True) -> list[SharedMapping] | None:
    """Shared mappings, all or the writable ones. None if they cannot be read."""
    try:
        fd = _open("/proc/self/maps", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:  # unreadable in tier "confined" for a process that took over
        return None
    try:
        with suppress(OSError):  # of older kernels
            return _searched(fd, _SHARED | _OR_NEXT | (_WRITABLE if writable else 0))
        maps = _read(fd)
    except OSError:
        return None
    finally:
        _close(fd)
    # Usually one of more than a hundred lines. The others are not parsed: this process was forked
    # just now, and copies each page that it writes to.
    kinds = (b"w-s", b"wxs") if writable else (b"-s ", b"xs ")
    return [found for access in kinds for found in _with(access, maps)]


def _searched(maps: int, sought: int) -> list[SharedMapping]:
    """As `_shared`, by a search in the kernel: reading all mappings takes 0.3 ms."""
    query, name = _query()
    found: list[SharedMapping] = []
    query.address, query.flags = 0, sought
    while True:
        query.name_size = _LONGEST
        try:
            fcntl.ioctl(maps, _QUERY, query)
        except OSError as error:
            if error.errno == errno.ENOENT:
                return found
            raise
        path = os.fsdecode(name.value) if query.name_size else ""
        protection = query.access & _PROTECTION
        found.append(SharedMapping(query.start, query.end, query.offset, protection, path))
        query.address = query.end


@functools.cache
def _query() -> tuple[_Query, ctypes.Array[ctypes.c_char]]:
    # Once, in the template: the caller was forked just now.
    name = ctypes.create_string_buffer(_LONGEST)
    return _Query(size=ctypes.sizeof(_Query), name_at=ctypes.addressof(name)), name


def _read(maps: int) -> bytes:
    pieces = []
    while piece := os.read(maps, _PIECE):
        pieces.append(piece)
    return b"".join(pieces)


def _with(access: bytes, maps: bytes) -> Iterator[SharedMapping]:
    """The mappings with this access."""
    at = -1
    while (at := maps.find(access, at + 1)) >= 0:
        start, end = maps.rfind(b"\n", 0, at) + 1, maps.find(b"\n", at)
        span, allowed, offset, _, _, *path = maps[start:end].split(None, 5)
        if allowed.endswith(access.strip()):  # and it is not just a file of that name
            first, _, last = span.partition(b"-")
            protection = sum(bit for mark, bit in _MARKS if mark in allowed)
            name = os.fsdecode(path[0]) if path else ""
            yield SharedMapping(int(first, 16), int(last, 16), int(offset, 16), protection, name)
        at = end


_MARKS = ((b"r", mmap.PROT_READ), (b"w", mmap.PROT_WRITE), (b"x", mmap.PROT_EXEC))
