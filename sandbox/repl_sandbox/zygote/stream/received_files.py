"""`ReceivedFiles`: files in memory that the other side fills before it sends them."""

from __future__ import annotations

import os

from . import descriptor_passing, stream_frames
from .descriptor_passing import DescriptorDescription
from .stream_frames import BrokenStreamError


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
        self._files[number] = descriptor_passing.new_file(size), size

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
        descriptor_passing.seal(fd, description.seals)
        return fd


def write_part(fd: int, payload: bytes) -> None:
    """Write the part of a file in a frame; OSError if the part lies outside the file."""
    _write(fd, *_part(payload))


def _part(payload: bytes) -> tuple[int, bytes]:
    start = stream_frames.NUMBER.size
    return stream_frames.read_number(payload[:start]), payload[start:]


def _write(fd: int, offset: int, data: bytes) -> None:
    while data:
        written = os.pwrite(fd, data, offset)
        offset, data = offset + written, data[written:]
