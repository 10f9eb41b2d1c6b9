"""`Spool`: the bytes of one upload, in memory once, hashed as they come."""

from __future__ import annotations

import errno
import hashlib
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

# From this size on, bytes lie in a file in memory, which processes that decode it share. Smaller
# uploads have no file: there may be more of them than a process may have descriptors.
IN_FILE = 1 << 20


class UploadDropped(OSError):
    """The bytes are not there any more."""


class Spool:
    """Grows by `append`, on the event loop. Threads may read it then, also while it is closed."""

    def __init__(self) -> None:
        self.size = 0
        self._hash = hashlib.sha256()
        self._data = bytearray()
        self._fd: int | None = None
        self._closed = False
        self._lock = threading.Lock()

    @property
    def sha256(self) -> str:
        """The hash of the bytes that have come, in hexadecimal."""
        return self._hash.hexdigest()

    def append(self, data: bytes) -> None:
        """Add `data`; after an OSError the spool can only be closed.

        Raises:
            OSError: there is no memory for it.
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
        """All bytes, in one object.

        Raises:
            Forgotten.
            OSError: the system has no descriptor for them.
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
        """A descriptor of a file in memory with all bytes, open inside the `with` block.

        Raises:
            Forgotten.
            OSError: the system has no descriptor for them.
        """
        fd = self._open()
        try:
            yield fd
        finally:
            os.close(fd)

    def close(self) -> None:
        """Forget the bytes. May be called twice."""
        with self._lock:
            self._closed = True
            fd, self._fd = self._fd, None
            self._data = bytearray()
            if fd is not None:
                os.close(fd)

    def _open(self) -> int:
        with self._lock:
            if self._closed:
                raise UploadDropped(errno.ESTALE, "the upload was forgotten")
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
