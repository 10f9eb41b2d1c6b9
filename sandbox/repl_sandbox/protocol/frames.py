"""Frames: bytes to frames and back. A frame is a small header and a blob that may be large.

    u32 header length | u32 blob length | header | blob          (network byte order)

Both lengths are checked before the body is buffered, so a hostile peer controls neither the size
nor the duration of buffering: at most one partial frame is held.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from ..errors import LocalProtocolError, RemoteProtocolError

LENGTHS = struct.Struct("!II")

# A header names a message and carries short fields: previews, tracebacks, names. The largest is a
# result with 201 changes and a full traceback: some 20 KiB, and 1.3 MB at worst, when each
# character is a JSON escape of 12 bytes.
MAX_HEADER = 2 << 20
# Figures, arguments of host calls, displayed values and answers. Bulk data uses a memfd instead.
MAX_BLOB = 64 << 20

_unpack = LENGTHS.unpack_from
_PREFIX = LENGTHS.size


class Frame(NamedTuple):
    """One frame: the bytes of its header (JSON) and of its blob."""

    header: bytes
    blob: bytes


def pack(header: bytes, blob: bytes = b"") -> bytes:
    """Return one frame as bytes.

    Raises:
        LocalProtocolError: a part is larger than the peer would accept.
    """
    if len(header) > MAX_HEADER or len(blob) > MAX_BLOB:
        raise LocalProtocolError(
            f"frame of {len(header)} + {len(blob)} bytes, limits are {MAX_HEADER} + {MAX_BLOB}"
        )
    return LENGTHS.pack(len(header), len(blob)) + header + blob


class FrameReader:
    """Collects bytes and returns whole frames; holds at most one partial frame.

    A chunk that is exactly one frame, the common case, is sliced without a copy into a buffer.

    Attributes:
        pending: bytes fed and not consumed yet, after consumed ones; empty if all were consumed.
    """

    def __init__(self, max_header: int = MAX_HEADER, max_blob: int = MAX_BLOB) -> None:
        self.pending: bytes | bytearray = b""
        self._start = 0
        self._max_header = max_header
        self._max_blob = max_blob

    @property
    def buffered(self) -> int:
        """Bytes buffered that do not complete a frame yet."""
        return len(self.pending) - self._start

    @property
    def missing(self) -> int:
        """Bytes that would complete the current frame; 0 without one or without its lengths."""
        buffered = self.buffered
        return (
            sum(_unpack(self.pending, self._start)) + _PREFIX - buffered
            if buffered >= _PREFIX
            else 0
        )

    def feed(self, data: bytes) -> None:
        """Add bytes in any chunking."""
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
        """Return the next whole frame, or None until more is fed.

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
            # Release the chunk: it may be large, and the next one may take long to arrive.
            self.pending, self._start = b"", 0
        else:
            self._start = end
        if type(data) is bytes:
            return Frame(data[body:middle], data[middle:end])
        with memoryview(data) as view:
            return Frame(bytes(view[body:middle]), bytes(view[middle:end]))
