"""Bytes to frames and back. A frame is a small header and a blob that may be large.

    u32 header length | u32 blob length | header | blob          (network byte order)

Both lengths are checked before any of the body is kept, so a hostile peer decides neither how much
is buffered nor for how long: at most one partial frame is held.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from ..errors import LocalProtocolError, RemoteProtocolError

LENGTHS = struct.Struct("!II")

# A header names a message and carries short fields: previews, tracebacks, names. The largest is a
# result with 201 changes and a full traceback: some 20 KiB, and at worst, when every character is
# one that takes 12 bytes as a JSON escape, 1.3 MB.
MAX_HEADER = 2 << 20
# Figures, arguments of host calls, displayed values and answers; bulk data goes by memfd instead.
MAX_BLOB = 64 << 20

_unpack = LENGTHS.unpack_from
_PREFIX = LENGTHS.size


class Frame(NamedTuple):
    """One frame: the header's bytes (JSON) and the blob's."""

    header: bytes
    blob: bytes


def pack(header: bytes, blob: bytes = b"") -> bytes:
    """One frame as bytes.

    Raises:
        LocalProtocolError: a part is larger than the peer would accept.
    """
    if len(header) > MAX_HEADER or len(blob) > MAX_BLOB:
        raise LocalProtocolError(
            f"frame of {len(header)} + {len(blob)} bytes, limits are {MAX_HEADER} + {MAX_BLOB}"
        )
    return LENGTHS.pack(len(header), len(blob)) + header + blob


class FrameReader:
    """Collects bytes and gives whole frames; holds at most one partial frame.

    The common case, one chunk that is one frame, is sliced without a copy into a buffer.

    Attributes:
        pending: what was fed and not given yet, behind what was; empty if all of it was.
    """

    def __init__(self, max_header: int = MAX_HEADER, max_blob: int = MAX_BLOB) -> None:
        self.pending: bytes | bytearray = b""
        self._start = 0
        self._max_header = max_header
        self._max_blob = max_blob

    @property
    def buffered(self) -> int:
        """Bytes held back because they end no frame yet."""
        return len(self.pending) - self._start

    @property
    def missing(self) -> int:
        """Bytes that would end the frame which has begun; 0 if none has, or its lengths lack."""
        held = self.buffered
        return sum(_unpack(self.pending, self._start)) + _PREFIX - held if held >= _PREFIX else 0

    def feed(self, data: bytes) -> None:
        """Add bytes as they came from the socket, in any chunking."""
        if self._start == len(self.pending):
            self.pending = data
        elif isinstance(self.pending, bytearray):
            del self.pending[: self._start]
            self.pending += data
        else:
            self.pending = bytearray(self.pending[self._start :])
            self.pending += data
        self._start = 0

    def next_frame(self) -> Frame | None:
        """The next whole frame, or None until more is fed.

        Raises:
            RemoteProtocolError: a frame announces more than the limits allow.
        """
        data, start = self.pending, self._start
        if len(data) - start < _PREFIX:
            return None
        header_size, blob_size = _unpack(data, start)
        if header_size > self._max_header or blob_size > self._max_blob:
            raise RemoteProtocolError(
                f"frame of {header_size} + {blob_size} bytes, "
                f"limits are {self._max_header} + {self._max_blob}"
            )
        body = start + _PREFIX
        middle = body + header_size
        end = middle + blob_size
        if len(data) < end:
            return None
        if end == len(data):
            # Let go: the next chunk may be long in coming, and this one may be large.
            self.pending, self._start = b"", 0
        else:
            self._start = end
        if type(data) is bytes:
            return Frame(data[body:middle], data[middle:end])
        with memoryview(data) as view:
            return Frame(bytes(view[body:middle]), bytes(view[middle:end]))
