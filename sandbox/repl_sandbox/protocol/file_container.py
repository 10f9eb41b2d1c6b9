"""File format of saved state: kind, version, header, payload and a checksum over all of it.

    8 bytes   `MAGIC`                   like PNG's: any transfer as text damages it
    4 bytes   the kind
    2 bytes   version of the kind       unsigned, big-endian, as are the lengths
    4 bytes   length of the header
    8 bytes   length of the payload
    header, payload
    32 bytes  SHA-256 of all bytes before

The checksum finds damage. It does not prove who wrote the file.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence

from ..errors import CheckpointError

MAGIC = b"\x89REPL\r\n\x1a"
# A header is JSON with a list of names, some 100 bytes each, so the limit is far above real use.
MAX_HEADER = 4 << 20

_PREFIX = struct.Struct(">8s4sHIQ")
_SUM = hashlib.sha256().digest_size


def pack(kind: bytes, version: int, header: bytes, payload: Sequence[bytes | memoryview]) -> bytes:
    """Return a file of `kind` as bytes; `payload` is given in pieces.

    Raises:
        CheckpointError: the header is over `MAX_HEADER` bytes.
    """
    if len(header) > MAX_HEADER:
        raise CheckpointError(f"too many names: {len(header):,} bytes; the limit is {MAX_HEADER:,}")
    size = sum(len(piece) for piece in payload)
    pieces = [_PREFIX.pack(MAGIC, kind, version, len(header), size), header, *payload]
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return b"".join([*pieces, digest.digest()])


def check_beginning(head: bytes, kind: bytes, name: str) -> None:
    """Check that the first bytes of a file are those of a file of `kind`.

    Raises:
        CheckpointError: they are not.
    """
    expected = MAGIC + kind
    if not expected.startswith(head[: len(expected)]):
        raise CheckpointError(f"this is not a {name}, or its beginning is damaged")


def unpack(data: bytes, kind: bytes, version: int, name: str) -> tuple[bytes, memoryview]:
    """Return the header and the payload of a file of `kind`; error messages call the file `name`.

    Lengths are compared before any content is read or copied.

    Raises:
        TypeError: `data` is not bytes.
        CheckpointError: the file is damaged, cut short, of another kind or of another version.
    """
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise TypeError(f"data must be bytes, not {type(data).__name__}")
    view = memoryview(data).cast("B")
    if len(view) < _PREFIX.size + _SUM:
        raise CheckpointError(f"this is not a {name}: {len(view)} bytes are too few")
    check_beginning(bytes(view[: _PREFIX.size]), kind, name)
    _, _, number, header_size, size = _PREFIX.unpack_from(view)
    if number != version:
        raise CheckpointError(
            f"the {name} has version {number} of its format; this release reads version {version}"
        )
    end = _PREFIX.size + header_size + size
    if header_size > MAX_HEADER or end + _SUM != len(view):
        raise CheckpointError(
            f"the {name} is damaged or cut short: it has {len(view):,} bytes and should have "
            f"{end + _SUM:,}"
        )
    if hashlib.sha256(view[:end]).digest() != view[end:]:
        raise CheckpointError(f"the {name} is damaged: its checksum does not match")
    start = _PREFIX.size + header_size
    return bytes(view[_PREFIX.size : start]), view[start:end]
