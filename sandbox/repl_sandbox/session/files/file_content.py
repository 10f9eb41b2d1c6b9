"""Contents in memory, for the file helper to read."""

from __future__ import annotations

import os
from collections.abc import Iterable
from errno import EFBIG

from ...native.sealed_memfd import seal
from ..session_operations import memfd
from .file_client import error_of
from .local_files import MemoryFile, Source, content_of, pieces


def in_memory(data: Source | MemoryFile, path: str, limit: int) -> tuple[int, int]:
    """Return the descriptor of a file in memory with the content `data`, and the content's size.

    Raises:
        OSError: the content, of the file `path`, exceeds `limit` bytes, or cannot be read.
    """
    if isinstance(data, MemoryFile):
        _check_size(data.size, path, limit)
        return os.dup(data.fd), data.size
    if isinstance(data, (bytes, bytearray, memoryview, str)):
        content = content_of(data, "data")
        _check_size(len(content), path, limit)
        return memfd(content)
    return _copied(pieces(data), path, limit)


def _copied(source: Iterable[bytes], path: str, limit: int) -> tuple[int, int]:
    fd, size = os.memfd_create("repl", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING), 0
    try:
        for piece in source:
            size += len(piece)
            _check_size(size, path, limit)
            _write_all(fd, piece)
        seal(fd)
    except BaseException:
        os.close(fd)
        raise
    return fd, size


def _check_size(size: int, path: str, limit: int) -> None:
    if size > limit:
        raise error_of(EFBIG, path, f"the limit is {limit:,} bytes (file_size)")


def _write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]
