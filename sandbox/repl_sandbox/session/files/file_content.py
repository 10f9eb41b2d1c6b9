"""Contents on the caller's side: sources that `put` reads, and targets that `get` writes to."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from errno import EFBIG, EINVAL
from typing import BinaryIO, NamedTuple, TypeAlias

from ...native.sealed_memfd import seal
from ..session_operations import memfd
from .file_client import error_of

_PIECE = 1 << 20


class MemoryFile(NamedTuple):
    """A file in memory whose first `size` bytes are a content; `put` copies none of them here."""

    fd: int
    size: int


# Text is written as UTF-8; a path is that of a local file, and a file object is binary.
Source: TypeAlias = "bytes | str | os.PathLike[str] | BinaryIO | MemoryFile"
# The path of a local file, which is replaced, or a binary file object.
Target: TypeAlias = "str | os.PathLike[str] | BinaryIO"


def check_source(data: object, name: str) -> None:
    """Raise TypeError or ValueError, naming the argument, unless `data` is a `Source`."""
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


def in_memory(data: Source, path: str, most: int) -> tuple[int, int]:
    """Return the descriptor of a file in memory with the content `data`, and the content's size.

    Raises:
        OSError: the content, of the file `path`, exceeds `most` bytes, or cannot be read.
    """
    if isinstance(data, MemoryFile):
        _check_size(data.size, path, most)
        return os.dup(data.fd), data.size
    if isinstance(data, (bytes, bytearray, memoryview, str)):
        content = content_of(data, "data")
        _check_size(len(content), path, most)
        return memfd(content)
    if isinstance(data, os.PathLike):
        with open(data, "rb") as file:
            return _copied(file, path, most)
    return _copied(data, path, most)


def _copied(source: BinaryIO, path: str, most: int) -> tuple[int, int]:
    fd, size = os.memfd_create("repl", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING), 0
    try:
        while piece := source.read(_PIECE):
            if not isinstance(piece, bytes):
                raise TypeError("data must be a file that is open in binary mode")
            size += len(piece)
            _check_size(size, path, most)
            _write_all(fd, piece)
        seal(fd)
    except BaseException:
        os.close(fd)
        raise
    return fd, size


def _check_size(size: int, path: str, most: int) -> None:
    if size > most:
        raise error_of(EFBIG, path, f"the limit is {most:,} bytes (file_size)")


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


def _write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]
