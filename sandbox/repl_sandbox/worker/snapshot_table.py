"""`SnapshotTable`: one page that a worker shares with its init: above all its waiting snapshots.

A row is the process id of a snapshot and the number of the cell after which it was made, the oldest
first. Code may be hostile and forge the page: init uses it only to choose among the session's own
processes, and checks that the process exists.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
from collections.abc import Sequence
from typing import NoReturn

Row = tuple[int, int]

_HALF = struct.Struct("=B")
_COUNT = struct.Struct("=I")
_ROW = struct.Struct("=iq")
_FILES = struct.Struct("=I")
_INTERRUPTED = struct.Struct("=q")
_LOSES_TOO_MANY = struct.Struct("=B")
# The page holds the table twice: at any moment it may be read, or its writer be stopped for ever.
# At its end are the numbers of `file_changes`, `interrupted` and `loses_too_many`.
_FILES_AT = mmap.PAGESIZE - _FILES.size
_INTERRUPTED_AT = _FILES_AT - _INTERRUPTED.size
_LOSES_TOO_MANY_AT = _INTERRUPTED_AT - _LOSES_TOO_MANY.size
_SIZE = _LOSES_TOO_MANY_AT // 2
MAX_SNAPSHOTS = (_SIZE - _COUNT.size) // _ROW.size


# Not Python's own mmap, which keeps a descriptor of the file: its number may be the code's.
_libc = ctypes.CDLL(None, use_errno=True)
_mmap, _munmap = _libc.mmap, _libc.munmap
_mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_mmap.restype = ctypes.c_void_p
_munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_FAILED = ctypes.c_void_p(-1).value


_ACCESS = mmap.PROT_READ | mmap.PROT_WRITE
_NEW = mmap.MAP_SHARED | mmap.MAP_ANONYMOUS
_FIXED = 0x10  # MAP_FIXED of uapi/linux/mman.h
_INSTEAD, _NEW_INSTEAD = mmap.MAP_SHARED | _FIXED, _NEW | _FIXED


def _map(fd: int) -> int:
    flags = mmap.MAP_SHARED if fd >= 0 else _NEW
    address: int = _mmap(None, mmap.PAGESIZE, _ACCESS, flags, fd, 0)
    return address if address != _FAILED else _failed()


def _failed() -> NoReturn:
    error = ctypes.get_errno()
    raise OSError(error, os.strerror(error))


class SnapshotTable:
    """Shared with every process that is forked after it was made."""

    def __init__(self, fd: int = -1) -> None:
        """A new page, or that of file `fd`, where the other end cannot inherit it."""
        self.address = _map(fd)
        page = (ctypes.c_char * mmap.PAGESIZE).from_address(self.address)
        self._page = memoryview(page).cast("B")

    def renew(self) -> None:
        """Switch to another page, of zeros, which no other process shares yet."""
        if _mmap(self.address, mmap.PAGESIZE, _ACCESS, _NEW_INSTEAD, -1, 0) == _FAILED:
            _failed()

    def use_page(self, fd: int) -> None:
        """Switch to the page of file `fd`."""
        if _mmap(self.address, mmap.PAGESIZE, _ACCESS, _INSTEAD, fd, 0) == _FAILED:
            _failed()

    def close(self) -> None:
        """Unmap the page."""
        if self.address:
            self._page.release()
            _munmap(self.address, mmap.PAGESIZE)
            self.address = 0

    def write(self, rows: Sequence[Row]) -> None:
        """Replace the table atomically: the byte that selects the valid half is written last."""
        _, half = self.write_inactive(rows)
        _HALF.pack_into(self._page, 0, half)

    def write_inactive(self, rows: Sequence[Row]) -> tuple[int, int]:
        """Write a table into the half that is not valid.

        Returns: the address of the process id in the last row; the first byte of the page that
        would make this half valid.
        """
        half = 1 - self._active_half()
        start = _HALF.size + half * _SIZE
        _COUNT.pack_into(self._page, start, len(rows))
        at = start + _COUNT.size
        for index, row in enumerate(rows):
            _ROW.pack_into(self._page, at + index * _ROW.size, *row)
        return self.address + at + (len(rows) - 1) * _ROW.size, half

    def read(self) -> list[Row]:
        """Return the rows, all of which may be forged."""
        start = _HALF.size + self._active_half() * _SIZE
        count = min(_COUNT.unpack_from(self._page, start)[0], MAX_SNAPSHOTS)
        start += _COUNT.size
        return [_ROW.unpack_from(self._page, start + i * _ROW.size) for i in range(count)]

    @property
    def file_changes(self) -> int:
        """A number that changes when others than the worker have changed or kept its files."""
        return int(_FILES.unpack_from(self._page, _FILES_AT)[0])

    def note_file_changes(self) -> None:
        """In init: note that the files have changed."""
        _FILES.pack_into(self._page, _FILES_AT, (self.file_changes + 1) & 0xFFFF_FFFF)

    @property
    def interrupted(self) -> int:
        """The cell that the last interrupt was meant for; 0 before there was any."""
        return int(_INTERRUPTED.unpack_from(self._page, _INTERRUPTED_AT)[0])

    @interrupted.setter
    def interrupted(self, cell: int) -> None:
        _INTERRUPTED.pack_into(self._page, _INTERRUPTED_AT, cell)

    @property
    def loses_too_many(self) -> bool:
        """True if the last state has no snapshot, because too many of its descriptors would be
        lost.
        """
        return bool(_LOSES_TOO_MANY.unpack_from(self._page, _LOSES_TOO_MANY_AT)[0])

    @loses_too_many.setter
    def loses_too_many(self, loses_too_many: bool) -> None:
        _LOSES_TOO_MANY.pack_into(self._page, _LOSES_TOO_MANY_AT, loses_too_many)

    def _active_half(self) -> int:
        return int(_HALF.unpack_from(self._page)[0] & 1)
