"""The frames of a stream: kind, channel, length, payload; and the framing that Docker adds."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

HEADER: Final = struct.Struct("!BII")
# The largest payload. A message of the control sockets has up to half of it.
MAX_PAYLOAD: Final = 1 << 17
CHUNK: Final = 1 << 16

MAKE: Final = 1  # a file with this number: its size
FILL: Final = 2  # bytes of a file: offset, then the bytes
GIVE: Final = 3  # data with descriptors: length of their description, description, data
DATA: Final = 4  # a message of a message socket; else a piece of a stream
PEER: Final = 5  # the process id of the sender on the channel
END: Final = 6  # the end of the channel's data
CLOSE: Final = 7  # the channel, or the file, is closed
CREDIT: Final = 8  # so many bytes of the channel were delivered
_KINDS: Final = range(MAKE, CREDIT + 1)

NUMBER: Final = struct.Struct("!Q")
LENGTH: Final = struct.Struct("!I")


class BrokenStreamError(Exception):
    """The other end sent an invalid frame."""


def frame(kind: int, channel: int, payload: bytes = b"") -> bytes:
    """Encode one frame."""
    return HEADER.pack(kind, channel, len(payload)) + payload


def read_number(payload: bytes) -> int:
    """Return the number that is a payload; raise BrokenStreamError if it is none."""
    if len(payload) != NUMBER.size:
        raise BrokenStreamError(f"a number of {len(payload)} bytes, not {NUMBER.size}")
    number: int = NUMBER.unpack(payload)[0]
    return number


class Parser:
    """Parses pieces of a stream into frames."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[int, int, bytes]]:
        """Return the complete frames: kind, channel, payload.

        Raises:
            BrokenStreamError: a header is invalid.
        """
        self._data += data
        start = 0
        while len(self._data) - start >= HEADER.size:
            kind, channel, length = HEADER.unpack_from(self._data, start)
            if kind not in _KINDS or length > MAX_PAYLOAD:
                raise BrokenStreamError(f"a frame of kind {kind} with {length} bytes")
            end = start + HEADER.size + length
            if len(self._data) < end:
                break
            yield kind, channel, bytes(self._data[start + HEADER.size : end])
            start = end
        del self._data[:start]


_DOCKER: Final = struct.Struct("!BxxxI")
_STDOUT: Final = 1


class Unwrapper:
    """Splits the output of an attached container into standard output and standard error."""

    def __init__(self) -> None:
        self._header = b""
        self._remaining = 0
        self._stream = 0

    def feed(self, data: bytes) -> Iterator[tuple[bool, bytes]]:
        """Return pieces: whether they are of standard output, and their bytes."""
        while data:
            if not self._remaining:
                missing = _DOCKER.size - len(self._header)
                self._header, data = self._header + data[:missing], data[missing:]
                if len(self._header) < _DOCKER.size:
                    return
                self._stream, self._remaining = _DOCKER.unpack(self._header)
                self._header = b""
                continue
            piece, data = data[: self._remaining], data[self._remaining :]
            self._remaining -= len(piece)
            yield self._stream == _STDOUT, piece
