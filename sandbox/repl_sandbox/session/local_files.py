"""Sources that `put` reads and targets that `get` writes to, on the caller's side.

Clients of a server use this module without an engine, on any system.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from errno import EINVAL
from typing import BinaryIO, NamedTuple, TypeAlias

_PIECE = 1 << 20


class MemoryFile(NamedTuple):
    """A file in memory whose first `size` bytes are a content; `put` copies none of them here."""

    fd: int
    size: int


# Text is written as UTF-8; a path is that of a local file, and a file object is binary.
Source: TypeAlias = "bytes | str | os.PathLike[str] | BinaryIO"
# The path of a local file, which is replaced, or a binary file object.
Target: TypeAlias = "str | os.PathLike[str] | BinaryIO"


def check_source(data: object, name: str) -> None:
    """Raise TypeError or ValueError, naming the argument, unless `data` can be put."""
    if isinstance(data, str):
        _utf8(data, name)
    elif not isinstance(data, (bytes, bytearray, memoryview, os.PathLike, MemoryFile)) and (
        not callable(getattr(data, "read", None))
    ):
        raise TypeError(
            f"{name} must be bytes or str, a pathlib.Path or a binary file, "
            f"not {type(data).__name__}"
        )


def content_of(data: object, name: str) -> bytes:
    """Return `data`, bytes or text, as bytes; raise TypeError or ValueError for anything else."""
    if isinstance(data, str):
        return _utf8(data, name)
    if isinstance(data, (bytes, bytearray, memoryview)):
        return bytes(data)
    raise TypeError(f"{name} must be bytes or str, not {type(data).__name__}")


def pieces(data: Source) -> Iterator[bytes]:
    """Yield the content of `data`, piece by piece.

    Raises:
        OSError: a local file cannot be read.
        TypeError: a file object is open in text mode.
    """
    if isinstance(data, os.PathLike):
        with open(data, "rb") as file:
            yield from _pieces_of(file)
    elif isinstance(data, (bytes, bytearray, memoryview, str)):
        yield content_of(data, "data")
    else:
        yield from _pieces_of(data)


def _pieces_of(file: BinaryIO) -> Iterator[bytes]:
    while piece := file.read(_PIECE):
        if not isinstance(piece, bytes):
            raise TypeError("data must be a file that is open in binary mode")
        yield piece


def check_target(to: object) -> None:
    """Raise TypeError unless `to` is None or a `Target`."""
    if not (
        to is None or isinstance(to, (str, os.PathLike)) or callable(getattr(to, "write", None))
    ):
        raise TypeError(f"to must be a path or a binary file, not {type(to).__name__}")


def write(chunks: Iterable[bytes], to: Target) -> int:
    """Write `chunks` to `to`, and return the number of bytes.

    A local file is replaced when it is complete; until then, and after an error, it is as it was.
    """
    if isinstance(to, (str, os.PathLike)):
        with _replacing(to) as file:
            return _written(chunks, file)
    return _written(chunks, to)


def _written(chunks: Iterable[bytes], file: BinaryIO) -> int:
    size = 0
    for chunk in chunks:
        size += len(chunk)
        rest = memoryview(chunk)
        while rest:
            # An unbuffered file may take less; an object that only looks like a file returns None.
            count = file.write(rest)
            rest = rest[count if isinstance(count, int) else len(rest) :]
    return size


@contextmanager
def _replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    # Of a link, the target. As root, a rename would replace even a device such as /dev/null.
    target = os.path.realpath(path)
    if os.path.exists(target) and not (os.path.isfile(target) or os.path.isdir(target)):
        raise OSError(EINVAL, "Not a regular file", os.fspath(path))
    part = os.path.join(os.path.dirname(target), f".{secrets.token_hex(8)}.part")
    try:
        with open(part, "xb") as file:
            yield file
        os.replace(part, target)
    except BaseException:
        with suppress(OSError):
            os.unlink(part)
        raise


def _utf8(text: str, name: str) -> bytes:
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(f"{name} cannot be written as UTF-8: {error}") from None
