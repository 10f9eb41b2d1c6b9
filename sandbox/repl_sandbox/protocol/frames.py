"""Frames: bytes to frames and back. A frame is a small header and a blob that may be large.

    u32 header length | u32 blob length | header | blob          (network byte order)

Both lengths are checked before the body is buffered, so a hostile peer controls neither the size
nor the duration of buffering: at most one partial frame is held.
"""

from __future__ import annotations

import re
import struct
from types import MappingProxyType
from typing import Final, NamedTuple

from ..errors import LocalProtocolError, RemoteProtocolError
from .values import MAX_PARTS, more_values

# Headers of fixed size: of a cell, and of an empty result.
#
# Nearly every step consists of these two messages, so their headers are packed numbers and not
# JSON. The first byte distinguishes them from each other and from the brace that begins JSON.

CELL_KIND = 1
EMPTY_RESULT_KIND = 2

# The kind and the cell's number; a result adds its peak memory in bytes.
CELL_HEADER = struct.Struct("!BQ")
EMPTY_RESULT_HEADER = struct.Struct("!BQQ")

# The same after the lengths of header and blob that begin every frame: all but the code of a cell.
CELL_FRAME = struct.Struct("!IIBQ")
EMPTY_RESULT_FRAME = struct.Struct("!IIBQQ")


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


# Limits of a header by its message type, checked before the header is parsed. No I/O.
#
# A parser holds the interpreter and thereby the event loop of a host: 300 ms for 2 MiB of empty
# lists. The first bytes of a header give the type, and the type gives the limits of length and
# number of values.

# Characters. A cell can bind a name of any length and raise a message of any length. The sender
# cuts them, so that no cell can make its own worker exceed the limits of a frame.
MAX_NAME: Final = 200
MAX_MESSAGE: Final = 4096
# The sender cuts each kind of lost resource well before (worker/lost_resources.py).
MAX_LOST: Final = 256
# More than the worker ever sends, so a hostile worker cannot make the host build longer tuples.
MAX_CHANGES: Final = 256
MAX_FIGURES: Final = 16
MAX_DISPLAYS: Final = 64

# Bytes of a header that has only counts and short words.
SHORT_HEADER: Final = 512
# Bytes of one character as a JSON escape: two surrogates.
_ESCAPE = 12
_CHANGE_VALUES = 6  # a list of five
_DISPLAY_VALUES = 26  # a flag, and a list of at most seven pairs
_PART_VALUES = 4  # a list of three
_FEW = 16


class HeaderLimit(NamedTuple):
    """Limits of the headers of one type: fields including the type, bytes, and values.

    `blob`: whether a blob may follow the header.
    """

    fields: int
    size: int = SHORT_HEADER
    values: int = _FEW
    blob: bool = True


# The host is trusted: its headers may have any length; its unknown fields are refused all the same.
_HOST = MAX_HEADER, MAX_HEADER
FORMS: Final = MappingProxyType(
    {
        "ready": HeaderLimit(2, blob=False),
        "restored": HeaderLimit(
            3, SHORT_HEADER + MAX_LOST * (_ESCAPE * MAX_NAME + 3), MAX_LOST + _FEW, blob=False
        ),
        "call": HeaderLimit(5, 1 << 20, _PART_VALUES * MAX_PARTS + _FEW),
        "answered": HeaderLimit(6),
        "result": HeaderLimit(
            8,
            MAX_HEADER,
            _CHANGE_VALUES * MAX_CHANGES + _DISPLAY_VALUES * MAX_DISPLAYS + MAX_FIGURES + 2 * _FEW,
        ),
        "value": HeaderLimit(1),
        "variables": HeaderLimit(1),
        "failed": HeaderLimit(3, SHORT_HEADER + _ESCAPE * MAX_MESSAGE, blob=False),
        "configure": HeaderLimit(5, *_HOST),
        "assign": HeaderLimit(4, *_HOST),
        "fetch": HeaderLimit(2, *_HOST, blob=False),
        "list": HeaderLimit(1, *_HOST, blob=False),
        "save": HeaderLimit(3, *_HOST, blob=False),
        "load": HeaderLimit(2, *_HOST),
        "reply": HeaderLimit(4, *_HOST),
    }
)

# JSON encoders differ in the space after the colon, and keep the order of the fields.
_TYPE = re.compile(rb'\{"type": ?"([a-z]{1,20})"[,}]')


def kind_of(header: bytes, blob: bytes) -> str:
    """Return the message type of a header, after its length, values and blob were checked.

    Raises:
        RemoteProtocolError: the header does not begin with a known type, or exceeds the limits of
            that type.
    """
    found = _TYPE.match(header)
    if found is None:
        raise RemoteProtocolError("a header does not begin with its message type")
    kind = found[1].decode()
    form = FORMS.get(kind)
    if form is None:
        raise RemoteProtocolError(f"unknown message type {kind!r}")
    if len(header) > form.size:
        raise RemoteProtocolError(f"a {kind} header of {len(header)} bytes, not {form.size}")
    if more_values(header, form.values):
        raise RemoteProtocolError(f"a {kind} header with more than {form.values} values")
    if blob and not form.blob:
        raise RemoteProtocolError(f"a {kind} message with a blob")
    return kind
