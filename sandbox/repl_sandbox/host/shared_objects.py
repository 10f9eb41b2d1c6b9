"""Shared objects for a template: checked here, on the host, and packed so that nothing is parsed
there.

A large str, bytes or array lies in the parcel as it will in memory. Everything else is written by
`marshal`, from a copy of None, bool, int, float, str, list and dict that was made here: a format of
counts and lengths, none of which a value decides. So a template reads only the host's own encoding,
whatever the values are.

The parcel is one sealed file in memory: the objects one after the other, then the manifest.
"""

from __future__ import annotations

import json
import marshal
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeAlias

from ..native.libc import seal
from ..protocol.values import check_free, check_keys
from ..zygote.template import FORMAT, Row

# For all objects of one call together, in bytes as packed.
MAX_SHARED = 16 << 30
# Smaller str and bytes are marshalled: a page of their own would cost more than it saves.
_RAW = 1 << 16
_PIECE = 1 << 20

_KINDS = "str, bytes, a JSON value or a numpy array"

# Encodings that store a text as CPython does, with the largest character of each, in order.
_FORMS = (("ascii", 1, 0x7F), ("latin-1", 1, 0xFF), ("utf-16", 2, 0xFFFF), ("utf-32", 4, 0x10FFFF))
_ORDER = "-le" if sys.byteorder == "little" else "-be"

Shareable: TypeAlias = Any  # str | bytes | JSON | numpy.ndarray, whose type is numpy's


class PackedObjects:
    """Stands for an object that was packed elsewhere: this process does not have it."""

    def __repr__(self) -> str:
        return "PACKED"


PACKED = PackedObjects()


@dataclass(slots=True)
class SharedObjects:
    """Packed objects: a file in memory, and the place of its manifest. A context manager."""

    fd: int
    manifest: tuple[int, int] = (0, 0)
    names: tuple[str, ...] = ()
    arrays: bool = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        os.close(self.fd)


def empty() -> SharedObjects:
    """An empty parcel, to be filled."""
    return SharedObjects(os.memfd_create("repl-shared", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))


def pack(objects: Mapping[str, Shareable], *, arrays: bool = True) -> SharedObjects:
    """Return the parcel of `objects`; without `arrays` a numpy array is refused.

    Raises:
        TypeError: an object's type cannot be shared; names it.
        ValueError: a name is not a variable's, JSON cannot carry a value, or all together exceed 16
            GiB.
    """
    for name in objects:
        check_free(name, "objects")
    parcel = empty()
    try:
        fill(parcel, objects, arrays=arrays)
    except BaseException:
        os.close(parcel.fd)
        raise
    return parcel


def fill(
    parcel: SharedObjects,
    objects: Mapping[str, Shareable],
    *,
    arrays: bool = True,
    parsed: bool = False,
) -> None:
    """Pack `objects` into an empty parcel, and seal it; their names must have been checked.

    `parsed`: those that are neither str nor bytes came from a JSON parser, so they consist of plain
    types without cycles, and need no copy.

    Raises:
        TypeError, ValueError: as `pack`.
    """
    packing = _Packing(parcel.fd, parsed=parsed)
    for name, value in objects.items():
        packing.add(name, value, arrays=arrays)
    parcel.manifest = packing.end()
    parcel.names = tuple(objects)
    parcel.arrays = any(row[1] == "array" for row in packing.rows)
    seal(parcel.fd)


class _Packing:
    """Writes objects into the file `fd`, and keeps the rows of the manifest."""

    def __init__(self, fd: int, *, parsed: bool) -> None:
        self._fd = fd
        self._parsed = parsed
        self._end = 0
        self.rows: list[Row] = []

    def add(self, name: str, value: Shareable, *, arrays: bool) -> None:
        start = self._end
        form: Any = None
        if isinstance(value, (bytearray, memoryview)):
            value = bytes(value)
        if type(value) is str and len(value) > _RAW:
            kind, form = "text", self._text(name, value)
        elif type(value) is bytes and len(value) > _RAW:
            kind = "bytes"
            self._write(name, memoryview(value))
        elif _is_array(value):
            if not arrays:
                raise TypeError(
                    f"{name}: cells under this policy have no numpy, so arrays cannot be shared"
                )
            kind, form = "array", self._array(name, value)
        else:
            kind = "value"
            self._write(name, memoryview(_value(name, value, parsed=self._parsed)))
        self.rows.append((name, kind, start, self._end - start, form))

    def end(self) -> tuple[int, int]:
        start = self._end
        self._write("the names", memoryview(marshal.dumps(self.rows, FORMAT)))
        return start, self._end - start

    def _write(self, name: str, data: memoryview) -> None:
        self._check_room(name, data.nbytes)
        while data:
            written = os.pwrite(self._fd, data, self._end)
            self._end += written
            data = data[written:]

    def _check_room(self, name: str, size: int) -> None:
        if self._end + size > MAX_SHARED:
            raise ValueError(f"{name}: the limit of shared objects is {MAX_SHARED:,} bytes in all")

    def _text(self, name: str, text: str) -> tuple[int, int]:
        """Write the characters in the narrowest encoding that has them all; (width, largest)."""
        start = self._end
        for codec, width, largest in _FORMS:
            try:
                self._characters(name, text, codec + (_ORDER if width > 1 else ""), width)
            except UnicodeEncodeError:
                self._end = start
                continue
            return width, largest
        raise AssertionError("every character fits into four bytes")

    def _characters(self, name: str, text: str, codec: str, width: int) -> None:
        self._check_room(name, len(text) * width)
        for start in range(0, len(text), _PIECE):
            piece = text[start : start + _PIECE]
            data = piece.encode(codec, "strict" if width == 1 else "surrogatepass")
            if len(data) != width * len(piece):  # two units for a character: too narrow
                raise UnicodeEncodeError(codec, piece, 0, 1, "a character is too large")
            self._write(name, memoryview(data))

    def _array(self, name: str, array: Any) -> tuple[Any, tuple[int, ...], bool]:
        """Write the elements; return the type, the shape, and whether columns come first."""
        self._check_room(name, array.nbytes)
        numpy = sys.modules["numpy"]
        fortran = array.flags.f_contiguous and not array.flags.c_contiguous
        described = _described(name, array.dtype)
        flat = numpy.asarray(array.T if fortran else array, order="C").reshape(-1)
        if flat.nbytes:
            self._write(name, memoryview(flat.view("u1")))
        return described, tuple(array.shape), fortran


def _value(name: str, value: Shareable, *, parsed: bool) -> bytes:
    try:
        if not parsed and type(value) not in (str, bytes):
            # As for `Session.set`: of plain types, without cycles, and of bounded depth.
            copied = json.loads(json.dumps(value, allow_nan=False))
            check_keys(value, texts_only=True)
            value = copied
        return marshal.dumps(value, FORMAT)
    except TypeError as error:
        raise TypeError(f"{name} must be {_KINDS}: {error}") from None
    except RecursionError:
        raise ValueError(f"{name} is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"{name} must be {_KINDS}: {error}") from None


def _is_array(value: object) -> bool:
    numpy = sys.modules.get("numpy")
    # No subclass: a mask or a unit would be lost silently.
    return numpy is not None and type(value) in (numpy.ndarray, numpy.memmap)


def _described(name: str, dtype: Any) -> Any:
    """`dtype` as numpy describes it; TypeError if the description is incomplete, as for objects."""
    import numpy.lib.format as words

    if not dtype.hasobject:
        described = words.dtype_to_descr(dtype)
        if words.descr_to_dtype(described) == dtype:
            return described
    raise TypeError(f"{name}: an array of {dtype} cannot be shared: its elements are no plain data")
