"""`Spool`: the bytes of one upload in memory, hashed while they arrive."""

from __future__ import annotations

import errno
import hashlib
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

# Larger uploads are stored in a memfd, which decoder processes share. Smaller ones need no
# descriptor: there may be more of them than a process may open.
IN_FILE = 1 << 20


class UploadDropped(OSError):
    """The bytes were dropped."""


class Spool:
    """Appended to on the event loop. Threads may read a complete spool, also during `close`."""

    def __init__(self) -> None:
        self.size = 0
        self._hash = hashlib.sha256()
        self._data = bytearray()
        self._fd: int | None = None
        self._closed = False
        self._lock = threading.Lock()

    @property
    def sha256(self) -> str:
        """The hash of the received bytes, in hexadecimal."""
        return self._hash.hexdigest()

    def append(self, data: bytes) -> None:
        """Append `data`. After an OSError the spool can only be closed.

        Raises:
            OSError: no memory is available.
        """
        self._hash.update(data)
        if self._fd is None and self.size + len(data) >= IN_FILE:
            self._fd = _file()
            _write(self._fd, self._data, 0)
            self._data.clear()
        if self._fd is None:
            self._data += data
        else:
            _write(self._fd, data, self.size)
        self.size += len(data)

    def read(self) -> bytes:
        """All bytes as one object.

        Raises:
            UploadDropped: the spool is closed.
            OSError: no file descriptor is available.
        """
        with self.file() as fd:
            data = bytearray(self.size)
            with memoryview(data) as view:
                at = 0
                while at < self.size:
                    at += os.preadv(fd, [view[at:]], at)
            return bytes(data)

    @contextmanager
    def file(self) -> Iterator[int]:
        """Open a memfd with all bytes for the duration of the block.

        Raises:
            UploadDropped: the spool is closed.
            OSError: no file descriptor is available.
        """
        fd = self._open()
        try:
            yield fd
        finally:
            os.close(fd)

    def close(self) -> None:
        """Release the bytes. Idempotent."""
        with self._lock:
            self._closed = True
            fd, self._fd = self._fd, None
            self._data = bytearray()
            if fd is not None:
                os.close(fd)

    def _open(self) -> int:
        with self._lock:
            if self._closed:
                raise UploadDropped(errno.ESTALE, "the upload was dropped")
            if self._fd is not None:
                return os.dup(self._fd)
            fd = _file()
            try:
                _write(fd, self._data, 0)
            except BaseException:
                os.close(fd)
                raise
            return fd


def _file() -> int:
    return os.memfd_create("repl-upload", os.MFD_CLOEXEC)


def _write(fd: int, data: bytes | bytearray, at: int) -> None:
    with memoryview(data) as view:
        done = 0
        while done < len(view):
            done += os.pwrite(fd, view[done:], at + done)
