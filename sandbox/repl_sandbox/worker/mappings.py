"""Memory of this process that it shares by a mapping: what is written there, all copies have.

A change of it changes no time of a file in tmpfs either.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress

from .descriptors import Held

_GONE = " (deleted)"
_NAMELESS = "/dev/zero"  # so the kernel calls what leads to no file
_LOCKS = "/dev/shm/sem."  # as other locks, they stay as they are
_MOST_NAMED = 20
_PIECE = 1 << 14  # bytes; the kernel gives a page at a time


def lost(ours: Collection[int], workspace: str = "") -> list[str]:
    """Names of the shared memory that a copy of this process has, for it is no copy.

    Not of what is mapped at the addresses `ours`, nor of the files of `workspace`, which are put
    back.
    """
    names = []
    for start, path in _shared() or ():
        inside = workspace and path.startswith(f"{workspace}/")
        if start not in ours and not inside and not path.startswith(_LOCKS):
            path = path.removesuffix(_GONE)
            named = "" if path == _NAMELESS else f" {path!a}"
            names.append(f"shared memory{named}, which is not copied")
    more = len(names) - _MOST_NAMED
    return names if more <= 0 else [*names[:_MOST_NAMED], f"{more:,} more pieces of shared memory"]


def touch(workspace: str, descriptors: Iterable[Held]) -> None:
    """Give the mapped files of `workspace` another time of change, for they may have changed.

    Who maps a file has it open as well, as a rule: Python's mmap keeps it so.
    """
    inside = f"{workspace}/"
    paths = {held.path for held in descriptors if _may_be_mapped(held)}
    mapped = _shared() if paths else None
    if mapped is not None:
        paths = {path for _, path in mapped}
    for path in paths:
        if path.startswith(inside):
            with suppress(OSError):  # it is gone
                status = os.stat(path, follow_symlinks=False)
                times = status.st_atime_ns, status.st_mtime_ns
                os.utime(path, ns=times, follow_symlinks=False)


def _may_be_mapped(held: Held) -> bool:
    return held.kind == stat.S_IFREG and held.flags & os.O_ACCMODE == os.O_RDWR


def _shared() -> list[tuple[int, str]] | None:
    """What is shared and can be written: where it begins, its file. None if that is not told."""
    try:
        maps = _maps()
    except OSError:  # not to be read in tier "confined" by a process that took over
        return None
    # Of more than a hundred lines one is, as a rule. The others are not taken apart: who asks was
    # forked just now, and copies each page that it writes to.
    return [found for access in (b"w-s", b"wxs") for found in _with(access, maps)]


def _maps() -> bytes:
    fd = os.open("/proc/self/maps", os.O_RDONLY | os.O_CLOEXEC)
    try:
        pieces = []
        while piece := os.read(fd, _PIECE):
            pieces.append(piece)
        return b"".join(pieces)
    finally:
        os.close(fd)


def _with(access: bytes, maps: bytes) -> Iterator[tuple[int, str]]:
    """Where a mapping begins that may be accessed so, and its file."""
    at = -1
    while (at := maps.find(access, at + 1)) >= 0:
        start, end = maps.rfind(b"\n", 0, at) + 1, maps.find(b"\n", at)
        span, allowed, _, _, _, *path = maps[start:end].split(None, 5)
        if allowed.endswith(access):  # and the file is not just called so
            yield int(span.partition(b"-")[0], 16), os.fsdecode(path[0]) if path else ""
        at = end
