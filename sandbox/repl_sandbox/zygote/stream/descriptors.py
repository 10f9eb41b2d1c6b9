"""Descriptors, described for the other end of a stream, which makes equivalent ones."""

from __future__ import annotations

import fcntl
import os
import socket
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from errno import EINVAL, ENXIO
from typing import Any, Final

from . import frames
from .frames import CHUNK, BrokenStreamError

# A socket of messages, a socket of bytes, a pipe written here, a pipe read here.
MESSAGES: Final = "messages"
BYTES: Final = "bytes"
WRITTEN: Final = "written"
READ: Final = "read"
FILE: Final = "file"
PIPES: Final = (READ, WRITTEN)

_OTHER_END: Final = {WRITTEN: READ, READ: WRITTEN}
SOCKETS: Final = {MESSAGES: socket.SOCK_SEQPACKET, BYTES: socket.SOCK_STREAM}
_NO_WRITES: Final = fcntl.F_SEAL_WRITE | 0x10 | fcntl.F_SEAL_SHRINK  # F_SEAL_FUTURE_WRITE
_BUFFER: Final = 1 << 19


@dataclass(frozen=True, slots=True)
class DescriptorDescription:
    """One descriptor. `signal`: as F_GETSIG returns it. `comes_back`: the receiver fills the
    file.
    """

    kind: str
    number: int
    signal: int = 0
    size: int = 0
    seals: int = -1
    comes_back: bool = False

    def row(self) -> list[Any]:
        """Return the description as JSON."""
        return [self.kind, self.number, self.signal, self.size, self.seals, self.comes_back]


def has_pipes(descriptions: Iterable[DescriptorDescription]) -> bool:
    """Return whether a pipe is among the descriptors."""
    return any(description.kind in PIPES for description in descriptions)


def described(row: object) -> DescriptorDescription:
    """Parse the result of `DescriptorDescription.row`; raise ValueError if it is invalid."""
    match row:
        case [str(kind), int(number), int(signal), int(size), int(seals), bool(back)]:
            if kind in (*SOCKETS, *_OTHER_END, FILE) and number >= 0 and size >= 0:
                return DescriptorDescription(kind, number, signal, size, seals, back)
    raise ValueError("no description of a descriptor")


def describe(fd: int, number: int) -> DescriptorDescription:
    """Describe `fd` under the number `number`; raise ValueError for other kinds of files."""
    mode = os.fstat(fd).st_mode
    if stat.S_ISSOCK(mode):
        with socket.socket(fileno=os.dup(fd)) as end:
            kind = MESSAGES if end.type == socket.SOCK_SEQPACKET else BYTES
        return DescriptorDescription(kind, number)
    access = fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE
    if stat.S_ISFIFO(mode):
        kind = WRITTEN if access == os.O_WRONLY else READ
        return DescriptorDescription(kind, number, signal=_signal(fd))
    if not stat.S_ISREG(mode):
        raise ValueError("neither a socket nor a pipe nor a file")
    seals = _seals(fd)
    back = seals >= 0 and access == os.O_RDWR and not seals & _NO_WRITES
    return DescriptorDescription(FILE, number, 0, os.fstat(fd).st_size, seals, back)


def make_ends(description: DescriptorDescription) -> tuple[int, int]:
    """Return the end that the receiver keeps, which does not block, and the end that is passed
    on.
    """
    if description.kind in SOCKETS:
        own_socket, passed_socket = socket.socketpair(socket.AF_UNIX, SOCKETS[description.kind])
        for end in (own_socket, passed_socket):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER)
        if description.kind == BYTES:  # so that the kernel reports the sender of the first message
            own_socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        own, passed = own_socket.detach(), passed_socket.detach()
    elif description.kind == WRITTEN:
        own, passed = os.pipe2(os.O_CLOEXEC)
    else:
        passed, own = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(own, False)
    if description.signal:
        _mark(passed, description.signal)
    return own, passed


def other_end(kind: str) -> str:
    """The kind of the receiver's own end of such a descriptor."""
    return _OTHER_END.get(kind, kind)


def new_file(size: int) -> int:
    """Return a file in memory, to be filled and sealed."""
    fd = os.memfd_create("repl", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, size)
    except BaseException:
        os.close(fd)
        raise
    return fd


def seal(fd: int, seals: int) -> None:
    """Add the seals of the original file, except those that this kernel lacks."""
    if seals > 0:
        try:
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
        except OSError as error:
            if error.errno != EINVAL:
                raise
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals & ~0x10 | fcntl.F_SEAL_WRITE)


def content(fd: int) -> Iterator[tuple[int, bytes]]:
    """Yield the content of a file without its holes: offset and bytes."""
    for start, end in _data_ranges(fd):
        while start < end:
            data = os.pread(fd, min(CHUNK, end - start), start)
            if not data:
                return
            yield start, data
            start += len(data)


def _data_ranges(fd: int) -> Iterator[tuple[int, int]]:
    end = 0
    while True:
        try:
            start = os.lseek(fd, end, os.SEEK_DATA)
            end = os.lseek(fd, start, os.SEEK_HOLE)
        except OSError as error:
            if error.errno != ENXIO and not end:  # the kernel has no holes
                yield 0, os.fstat(fd).st_size
            return
        yield start, end


def _seals(fd: int) -> int:
    try:
        return fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except OSError:
        return -1


def _signal(fd: int) -> int:
    try:
        return fcntl.fcntl(fd, fcntl.F_GETSIG)
    except OSError:
        return 0


def _mark(fd: int, signal: int) -> None:
    try:
        fcntl.fcntl(fd, fcntl.F_SETSIG, signal)
    except OSError:
        pass  # as on a kernel without marks: `protocol/control.py`


# `ReceivedFiles`: files in memory that the other side fills before it sends them.


class ReceivedFiles:
    """Files that belong to no message yet: at most `max_files`, each of at most `max_size` bytes.

    `max_size`: None if the other side is trusted.
    """

    def __init__(self, max_files: int, max_size: int | None) -> None:
        self._max_files, self._max_size = max_files, max_size
        self._files: dict[int, tuple[int, int]] = {}  # descriptor and size

    def make(self, number: int, size: int) -> None:
        """Make a file of `size` bytes; raise BrokenStreamError if it exceeds a limit."""
        if len(self._files) >= self._max_files or number in self._files:
            raise BrokenStreamError("too many files that belong to no message")
        if self._max_size is not None and size > self._max_size:
            raise BrokenStreamError(f"a file of {size:,} bytes exceeds {self._max_size:,}")
        self._files[number] = new_file(size), size

    def fill(self, number: int, payload: bytes) -> bool:
        """Write a part of a file; return whether there is such a file."""
        if number not in self._files:
            return False
        fd, size = self._files[number]
        offset, data = _part(payload)
        # Writing behind the end would enlarge the file, and evade the limit of its size.
        if offset + len(data) > size:
            raise BrokenStreamError("a part that lies outside its file")
        _write(fd, offset, data)
        return True

    def finish(self, description: DescriptorDescription) -> int:
        """Return the complete file, sealed like the original."""
        fd, size = self._files.pop(description.number, (-1, -1))
        if size != description.size:
            raise BrokenStreamError("a description that does not match a file that was sent")
        seal(fd, description.seals)
        return fd


def write_part(fd: int, payload: bytes) -> None:
    """Write the part of a file in a frame; OSError if the part lies outside the file."""
    _write(fd, *_part(payload))


def _part(payload: bytes) -> tuple[int, bytes]:
    start = frames.NUMBER.size
    return frames.read_number(payload[:start]), payload[start:]


def _write(fd: int, offset: int, data: bytes) -> None:
    while data:
        written = os.pwrite(fd, data, offset)
        offset, data = offset + written, data[written:]
