"""Contexts and files in their wire form: inside the request, or uploaded as `UploadBody`."""

from __future__ import annotations

import codecs
import hashlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from repl_env.client.upload.last_value_cache import LastValueCache
from repl_env.common.binary_json import encoded
from repl_env.common.json_values import json_text, text_or_bytes

if TYPE_CHECKING:
    from repl_env.episode.contexts import Given

# From this size on, in bytes, a context is uploaded by HTTP: uploads resume after a failure, all
# sessions share the context, and no ping waits behind it. Below, the extra request costs more.
LARGE = 1 << 20
# Bytes per read of a file: enough to hash at full speed, little to hold.
_CHUNK = 1 << 20

Kind: TypeAlias = Literal["text", "bytes", "json"]
# Bytes of a body from an offset on, up to a limit.
Read: TypeAlias = Callable[[int, int], bytes]


@dataclass(frozen=True, slots=True)
class UploadBody:
    """A context to upload. `open` gives access to its bytes, needed only to send it."""

    kind: Kind
    size: int
    sha256: str
    open: Callable[[], Read] = field(repr=False)
    name: str = ""

    @classmethod
    def of_text(cls, text: str) -> UploadBody:
        """Return the body of a text. Its UTF-8 form is made twice rather than held."""
        data = text.encode()
        return cls("text", len(data), _sha256(data), lambda: _reading(text.encode()))

    @classmethod
    def of_bytes(cls, data: bytes, kind: Kind = "bytes") -> UploadBody:
        """Return the body of bytes, or JSON."""
        return cls(kind, len(data), _sha256(data), lambda: _reading(data))

    @classmethod
    def of_file(cls, path: Path) -> UploadBody:
        """Return the body of a file that is never held whole: text without a BOM if UTF-8, else
        bytes.
        """
        with path.open("rb") as file:
            start = len(codecs.BOM_UTF8) if file.read(3) == codecs.BOM_UTF8 else 0
        body = cls._of_file(path, start)
        return body if body.kind == "text" or not start else cls._of_file(path, 0)

    @classmethod
    def _of_file(cls, path: Path, start: int) -> UploadBody:
        digest, decoder = hashlib.sha256(), codecs.getincrementaldecoder("utf-8")()
        kind: Kind = "text"
        size = 0
        for chunk in _chunks(path, start):
            digest.update(chunk)
            size += len(chunk)
            kind = _still_text(decoder, chunk, kind)
        kind = _still_text(decoder, b"", kind, final=True)

        def read(offset: int, limit: int) -> bytes:
            with path.open("rb") as file:
                file.seek(start + offset)
                return file.read(limit)

        return cls(kind, size, digest.hexdigest(), lambda: read)


# The last body of an immutable value: the rollouts of a group begin with one context each.
LATEST: LastValueCache[UploadBody] = LastValueCache()


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _reading(data: bytes) -> Read:
    view = memoryview(data)
    return lambda offset, limit: bytes(view[offset : offset + limit])


def _chunks(path: Path, start: int) -> Iterator[bytes]:
    with path.open("rb") as file:
        file.seek(start)
        while chunk := file.read(_CHUNK):
            yield chunk


def _still_text(
    decoder: codecs.IncrementalDecoder, chunk: bytes, kind: Kind, *, final: bool = False
) -> Kind:
    if kind == "text":
        try:
            decoder.decode(chunk, final)
        except UnicodeDecodeError:
            return "bytes"
    return kind


def packed(name: str, value: Given, *, upload_from: float = LARGE) -> Any:
    """Return a context as it stands in a request, or its UploadBody.

    Raises:
        TypeError, ValueError: naming the context, if it is invalid or JSON cannot carry it.
        OSError: a Path cannot be read.
    """
    if isinstance(value, Path):
        if value.stat().st_size >= upload_from:
            return replace(UploadBody.of_file(value), name=name)
        value = text_or_bytes(value.read_bytes())
    found: Any = value
    if isinstance(value, (list, dict)):
        found = _packed_json(name, value, upload_from)
    elif isinstance(value, str):
        found = _packed_text(value, upload_from)
    elif isinstance(value, (bytes, bytearray, memoryview)):
        data = bytes(value)  # the same object, if it is bytes
        found = LATEST.of(data, UploadBody.of_bytes) if len(data) >= upload_from else encoded(data)
    else:
        allowed = "str, bytes, list, dict or pathlib.Path"
        raise TypeError(f"{name} must be {allowed}, not {type(value).__name__}")
    return replace(found, name=name) if isinstance(found, UploadBody) else found


def _packed_json(name: str, value: Any, upload_from: float) -> Any:
    text = json_text(name, value)
    if len(text) < upload_from / 4 or len(data := text.encode()) < upload_from:
        return encoded(value)
    return UploadBody.of_bytes(data, "json")


def _packed_text(text: str, upload_from: float) -> str | UploadBody:
    if len(text) < upload_from / 4:  # a character is at most four bytes
        return text
    try:
        if len(text) < upload_from and len(text.encode()) < upload_from:
            return text
        return LATEST.of(text, UploadBody.of_text)
    except UnicodeEncodeError:  # lone surrogates: JSON has an escape for them, UTF-8 does not
        return text


def packed_file(path: str, value: object, *, upload_from: float = LARGE) -> Any:
    """Return a file as it stands in a request, or its UploadBody.

    Raises:
        TypeError: naming the file, if it is invalid.
        OSError: a Path cannot be read.
    """
    name = f"files: {path!r}"
    if isinstance(value, (str, bytes, bytearray, memoryview, Path)):
        content: Any = value
        return packed(name, content, upload_from=upload_from)
    raise TypeError(f"{name} must be bytes, str or a Path, not {type(value).__name__}")


def is_small(value: Given | None) -> bool:
    """Return whether packing the value is too quick for an event loop to notice."""
    if value is None:
        return True
    return isinstance(value, (str, bytes)) and len(value) < LARGE / 4


NEVER_LARGE = math.inf
