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
_PIECE = 1 << 20

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
            begin = len(codecs.BOM_UTF8) if file.read(3) == codecs.BOM_UTF8 else 0
        parcel = cls._of_file(path, begin)
        return parcel if parcel.kind == "text" or not begin else cls._of_file(path, 0)

    @classmethod
    def _of_file(cls, path: Path, begin: int) -> UploadBody:
        digest, decoder = hashlib.sha256(), codecs.getincrementaldecoder("utf-8")()
        kind: Kind = "text"
        size = 0
        for piece in _pieces(path, begin):
            digest.update(piece)
            size += len(piece)
            kind = _still_text(decoder, piece, kind)
        kind = _still_text(decoder, b"", kind, final=True)

        def read(offset: int, most: int) -> bytes:
            with path.open("rb") as file:
                file.seek(begin + offset)
                return file.read(most)

        return cls(kind, size, digest.hexdigest(), lambda: read)


# The last body of an immutable value: the rollouts of a group begin with one context each.
LATEST: LastValueCache[UploadBody] = LastValueCache()


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _reading(data: bytes) -> Read:
    view = memoryview(data)
    return lambda offset, most: bytes(view[offset : offset + most])


def _pieces(path: Path, begin: int) -> Iterator[bytes]:
    with path.open("rb") as file:
        file.seek(begin)
        while piece := file.read(_PIECE):
            yield piece


def _still_text(
    decoder: codecs.IncrementalDecoder, piece: bytes, kind: Kind, *, final: bool = False
) -> Kind:
    if kind == "text":
        try:
            decoder.decode(piece, final)
        except UnicodeDecodeError:
            return "bytes"
    return kind


def packed(name: str, given: Given, *, large: float = LARGE) -> Any:
    """Return a context as it stands in a request, or its UploadBody.

    Raises:
        TypeError, ValueError: naming the context, if it is invalid or JSON cannot carry it.
        OSError: a Path cannot be read.
    """
    if isinstance(given, Path):
        if given.stat().st_size >= large:
            return replace(UploadBody.of_file(given), name=name)
        given = text_or_bytes(given.read_bytes())
    found: Any = given
    if isinstance(given, (list, dict)):
        found = _packed_json(name, given, large)
    elif isinstance(given, str):
        found = _packed_text(given, large)
    elif isinstance(given, (bytes, bytearray, memoryview)):
        data = bytes(given)  # the same object, if it is bytes
        found = LATEST.of(data, UploadBody.of_bytes) if len(data) >= large else encoded(data)
    else:
        allowed = "str, bytes, list, dict or pathlib.Path"
        raise TypeError(f"{name} must be {allowed}, not {type(given).__name__}")
    return replace(found, name=name) if isinstance(found, UploadBody) else found


def _packed_json(name: str, given: Any, large: float) -> Any:
    text = json_text(name, given)
    if len(text) < large / 4 or len(data := text.encode()) < large:
        return encoded(given)
    return UploadBody.of_bytes(data, "json")


def _packed_text(text: str, large: float) -> str | UploadBody:
    if len(text) < large / 4:  # a character is at most four bytes
        return text
    try:
        if len(text) < large and len(text.encode()) < large:
            return text
        return LATEST.of(text, UploadBody.of_text)
    except UnicodeEncodeError:  # lone surrogates: JSON has an escape for them, UTF-8 does not
        return text


def packed_file(path: str, given: object, *, large: float = LARGE) -> Any:
    """Return a file as it stands in a request, or its UploadBody.

    Raises:
        TypeError: naming the file, if it is invalid.
        OSError: a Path cannot be read.
    """
    name = f"files: {path!r}"
    if isinstance(given, (str, bytes, bytearray, memoryview, Path)):
        content: Any = given
        return packed(name, content, large=large)
    raise TypeError(f"{name} must be bytes, str or a Path, not {type(given).__name__}")


def is_small(given: Given | None) -> bool:
    """Return whether packing the value is too quick for an event loop to notice."""
    if given is None:
        return True
    return isinstance(given, (str, bytes)) and len(given) < LARGE / 4


NEVER_LARGE = math.inf
