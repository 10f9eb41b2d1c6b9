"""`Arriving`: bytes that come in piece by piece, kept once and hashed as they come.

Covers: order, whatever thread does the work; a return to an earlier point. Does not cover: how many
bytes there may be, and whose they are (`uploads.py`).
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

# Less than this is hashed and kept where it is received. From here on a thread does it, whose start
# takes a tenth of the time that the work takes; hashing and writing hold no lock of Python's.
LARGE = 1 << 20


class Forgotten(OSError):
    """The bytes are not there any more."""


@dataclass(slots=True, eq=False)
class Content:
    """Bytes that do not change any more: in `data`, or in the memory file `fd` if they are many.

    Threads may read it while it is closed: they get all, or are told that it is gone.
    """

    size: int
    data: bytes = b""
    fd: int | None = None
    _closed: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def read(self) -> bytes:
        """All of them, in one object.

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
        """A descriptor of a file in memory with all of them, for as long as this goes on.

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
        """Forget them."""
        with self._lock:
            self._closed = True
            self.data, fd, self.fd = b"", self.fd, None
            if fd is not None:
                os.close(fd)

    def _open(self) -> int:
        with self._lock:
            if self._closed:
                raise Forgotten(errno.ESTALE, "the upload was forgotten")
            if self.fd is not None:
                return os.dup(self.fd)
            fd = os.memfd_create("repl-upload", os.MFD_CLOEXEC)
            try:
                os.pwrite(fd, self.data, 0)
            except BaseException:
                os.close(fd)
                raise
            return fd


@dataclass(frozen=True, slots=True)
class Mark:
    """A point in what has arrived."""

    stored: int
    pending: bytes
    hash: hashlib._Hash


class Arriving:
    """Grows by `add`. One task at a time calls it; after an OSError it can only be closed."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self._pending = bytearray()
        self._fd: int | None = None
        self._stored = 0  # bytes in the file, or on the way there
        self._storing: asyncio.Future[None] | None = None
        self._closed = False

    @property
    def received(self) -> int:
        """How many bytes are there."""
        return self._stored + len(self._pending)

    async def add(self, data: bytes) -> None:
        """Take `data`, which is next. Returns before it is hashed.

        Raises:
            OSError: there is no memory for it, or for what came before.
        """
        self._pending += data
        if len(self._pending) >= LARGE:
            await self._store()

    async def mark(self) -> Mark:
        """This point, to come `back` to."""
        await self._settle()
        return Mark(self._stored, bytes(self._pending), self._hash.copy())

    async def back(self, mark: Mark) -> None:
        """Forget what came after `mark`."""
        await self._settle()
        self._stored, self._hash = mark.stored, mark.hash.copy()
        self._pending = bytearray(mark.pending)

    async def finish(self) -> tuple[str, Content]:
        """The hash of all, in hexadecimal, and the bytes; there must come no more.

        Raises:
            OSError: as `add`.
        """
        if self._stored and self._pending:
            await self._store()
        await self._settle()
        self._hash.update(self._pending)
        size, fd, self._fd = self.received, self._fd, None
        if fd is not None:
            os.ftruncate(fd, size)  # what was there before a return
        data, self._pending = bytes(self._pending), bytearray()
        return self._hash.hexdigest(), Content(size, data, fd)

    def close(self) -> None:
        """Forget it. May be called twice, and amid any of the others, which then do nothing."""
        self._closed = True
        fd, self._fd = self._fd, None
        self._pending = bytearray()
        if fd is None:
            return
        if self._storing is None:
            os.close(fd)
        else:
            # Its number would be another file's while the thread writes to it.
            self._storing.add_done_callback(partial(_let_go, fd))

    async def _store(self) -> None:
        await self._settle()
        if self._closed:
            return
        if self._fd is None:
            self._fd = os.memfd_create("repl-upload", os.MFD_CLOEXEC)
        pending, self._pending = self._pending, bytearray()
        self._storing = asyncio.get_running_loop().run_in_executor(
            None, _keep, self._fd, self._stored, pending, self._hash
        )
        self._stored += len(pending)

    async def _settle(self) -> None:
        """Wait for the thread; one that is given up on goes on, and is waited for the next time."""
        if self._storing is not None:
            await asyncio.shield(self._storing)
            self._storing = None


def _let_go(fd: int, storing: asyncio.Future[None]) -> None:
    storing.exception()  # which nobody else will ask for
    os.close(fd)


def _keep(fd: int, at: int, data: bytearray, into: hashlib._Hash) -> None:
    into.update(data)
    with memoryview(data) as view:
        done = 0
        while done < len(view):
            done += os.pwrite(fd, view[done:], at + done)
