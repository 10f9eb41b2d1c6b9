"""Whether a process is, beside its memory, what it was when it was looked at closely.

What it is there takes some forty system calls to tell, and each of them a function that nothing
else in a step calls and objects on pages that nothing else writes to, which a copy would be brought
as well. Here one chain of the C library (`contexts`) makes the calls, and what they have found is
compared as a whole. It says nothing of what is another: that takes the close look.

Covers: which descriptors are open, the standard streams, limits, masks, how much is mapped, the
number of threads, the directory, timers, whether the workspace is empty, and whether the waiting
copy lives.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from . import contexts
from .apart import Apart
from .calls import Row
from .forms import Form
from .libc import number
from .quiet_rows import SIGNALS, Awaited

_STREAMS: Final = 3
# struct stat, on both machines: device and inode come first, and the size.
_FILE: Final = 16
_SIZE: Final = 48
_SIZED: Final = 56
_STAT: Final = 144
_NO_FILES: Final = 40  # bytes that an empty directory has in tmpfs (mm/shmem.c); each name adds 20
_TIMER: Final = 32  # bytes of struct itimerval
_TIMERS: Final = 3
_PATH: Final = 256  # in a directory with a longer one each look is close
_TEXT: Final = 4096  # /proc/self/limits and status are a third of that
_AT_FDCWD: Final = -100
_OPEN: Final = b"/proc/%b/fd"  # its size is how many there are, since Linux 6.2
_SOURCES: Final = ("/proc/self/status", "/proc/self/limits")
# Of status: its name and mask; how much is mapped, as what, in how many tables; signals, filters
# and processors. What lies between changes all the time.
_KEPT: Final = (
    (b"Name:", b"State:"),
    (b"VmSize:", b"VmHWM:"),
    (b"VmData:", b"VmSwap:"),
    (b"Threads:", b"SigQ:"),
    (b"SigBlk:", b"Cpus_allowed_list:"),
)


def lasting(status: bytes) -> list[tuple[int, int]]:
    """Where in the text of /proc/self/status lies what does not change by itself."""
    return [
        (start, status.find(last, start))
        for first, last in _KEPT
        if (start := status.find(first)) >= 0
    ]


class Own(NamedTuple):
    """What a worker has from the beginning: descriptors, distinct, and the path of its files."""

    descriptors: tuple[int, ...]
    workspace: str


class Glance:
    """Of this process; it has two descriptors of its own."""

    def __init__(self, own: Own, others: Sequence[int]) -> None:
        """`others`: descriptors that are open besides, the last one a file's.

        Raises:
            OSError: the C library has no contexts, or there is no room for a descriptor.
        """
        self._sources: list[Apart] = []
        try:
            for path in _SOURCES:
                self._sources.append(Apart(os.open(path, os.O_RDONLY | os.O_CLOEXEC)))
            self._lay_out(own, (*own.descriptors, *self.descriptors, *others))
        except OSError:
            self.close()
            raise

    @property
    def descriptors(self) -> tuple[int, ...]:
        """Its own."""
        return tuple(source.fd for source in self._sources)

    def _lay_out(self, own: Own, held: Sequence[int]) -> None:
        polled = b"".join(bytes(Awaited(fd)) for fd in held)
        self._timers = len(polled) + (_STREAMS + 1) * _FILE + 2 * _SIZED
        self._status = self._timers + _TIMERS * _TIMER + _PATH + _TEXT
        self._alive = self._status + _TEXT
        found = ctypes.create_string_buffer(polled, self._alive + _STAT)
        self._found = memoryview(found).cast("B")
        self._copy, self._path = 0, ctypes.create_string_buffer(_PATH)
        self._now = (ctypes.c_long * 2)()  # struct timespec
        self._held, saved = contexts.saved()
        rows = self._rows(ctypes.addressof(found), held, own.workspace.encode())
        self._form = Form(list(rows), saved, 0)
        self._expected = b""
        self._parts: list[bytes] = []
        self._kept: list[tuple[int, int]] = []  # where they lie

    def _rows(self, at: int, held: Sequence[int], workspace: bytes) -> Iterator[Row]:
        """Each writes behind the one before it, or over what is not wanted of that."""
        call, file = "syscall", held[-1]
        yield call, number("ppoll"), at, len(held), ctypes.addressof(self._now), 0, SIGNALS
        at += len(held) * ctypes.sizeof(Awaited)
        for fd in (*range(_STREAMS), file):
            yield call, number("fstat"), fd, at
            at += _FILE
        for each in (_OPEN % b"self", workspace):
            yield call, number("newfstatat"), _AT_FDCWD, each, at, 0
            at += _SIZED
        for timer in range(_TIMERS):
            yield call, number("getitimer"), timer, at
            at += _TIMER
        yield call, number("getcwd"), at, _PATH
        at += _PATH
        for fd in reversed(self.descriptors):
            yield call, number("pread64"), fd, at, _TEXT, 0
            at += _TEXT
        yield call, number("newfstatat"), _AT_FDCWD, ctypes.addressof(self._path), at, 0

    def remember(self) -> None:
        """A close look has found nothing that a copy would lack."""
        self._expected = b""
        timers = slice(self._timers, self._timers + _TIMERS * _TIMER)
        if self._look(os.getpid()) or any(self._found[timers]):
            return  # a timer that runs may show the same twice
        files = self._timers - _SIZED + _SIZE
        if int.from_bytes(self._found[files : self._timers], sys.byteorder) != _NO_FILES:
            return  # a child of the code's may have made one since the close look
        status = bytes(self._found[self._status : self._alive])
        kept = lasting(status)
        self._parts = [status[start:end] for start, end in kept]
        self._kept = [(self._status + start, self._status + end) for start, end in kept]
        self._expected = bytes(self._found[: self._status])

    def is_same(self, copy: int) -> bool:
        """Whether all is as it was then, and `copy` waits."""
        if not self._expected or self._look(copy):
            return False
        found, alive = self._found, self._alive
        if bytes(found[: self._status]) != self._expected or found[alive + _SIZE] == 0:
            return False
        parts = [bytes(found[begin:end]) for begin, end in self._kept]
        return parts == self._parts

    def _look(self, copy: int) -> int:
        """Make the calls; the errno of one that has failed, 0 if none has."""
        if copy != self._copy:
            self._copy = copy
            # Of a process that has ended the size is 0, as long as its number is not free.
            self._path.value = _OPEN % b"%d" % copy
        return self._form.chain.run()

    def close(self) -> None:
        """Let go of the descriptors."""
        for source in self._sources:
            source.close()
