"""`unpack`: loads the host's shared objects into a template: copied into place, nothing parsed.

The host packs them (`repl_sandbox.zygote.client.shared_objects`). Large memory is allocated in huge
pages, for which a fork copies one entry for each 2 MB instead of one for each page.
"""

from __future__ import annotations

import ctypes
import importlib
import marshal
import os
import sys
from collections.abc import Callable
from typing import Any, TypeAlias

from ...errors import SandboxError
from ...native import heap_memory

# The version of marshal without references between objects; the same in all versions of Python 3.
FORMAT = 2

# Smaller sizes are not worth a memory area of their own, which advice on a part of an area makes.
_HUGE = 4 << 20

# name, kind, offset, bytes, and what else the kind needs
Row: TypeAlias = tuple[str, str, int, int, Any]

_new_text = ctypes.pythonapi.PyUnicode_New
_new_text.argtypes = [ctypes.c_ssize_t, ctypes.c_uint32]
_new_text.restype = ctypes.py_object
_new_bytes = ctypes.pythonapi.PyBytes_FromStringAndSize
_new_bytes.argtypes = [ctypes.c_void_p, ctypes.c_ssize_t]
_new_bytes.restype = ctypes.py_object


def unpack(fd: int, offset: int, size: int) -> dict[str, object]:
    """Return the objects in file `fd` by their names; its manifest has `size` bytes at `offset`.

    Raises:
        SandboxError: the memory does not suffice, or numpy cannot be imported for an array.
    """
    try:
        rows: list[Row] = marshal.loads(_read(fd, offset, size))
        return {name: _MAKE[kind](fd, start, size, form) for name, kind, start, size, form in rows}
    except MemoryError:
        raise SandboxError("there is no memory for the objects to share") from None


def _read(fd: int, offset: int, size: int) -> bytearray:
    data = bytearray(size)
    _fill(memoryview(data), fd, offset)
    return data


def _fill(remaining: memoryview, fd: int, offset: int) -> None:
    while remaining:
        size = os.preadv(fd, [remaining], offset)
        if not size:
            raise EOFError("the parcel is shorter than its manifest says")
        remaining, offset = remaining[size:], offset + size


def _fill_at(address: int, fd: int, offset: int, size: int) -> None:
    if size >= _HUGE:
        heap_memory.advise_huge_pages(address, size)
    _fill(memoryview((ctypes.c_char * size).from_address(address)).cast("B"), fd, offset)


def _value(fd: int, offset: int, size: int, form: Any) -> object:
    return marshal.loads(_read(fd, offset, size))


def _text(fd: int, offset: int, size: int, form: tuple[int, int]) -> str:
    width, largest = form
    text: str = _new_text(size // width, largest)
    # It ends with the characters and one null of the same width; a new one has no other parts.
    header = sys.getsizeof(text) - size - width
    _fill_at(id(text) + header, fd, offset, size)
    return text


def _bytes(fd: int, offset: int, size: int, form: Any) -> bytes:
    data: bytes = _new_bytes(None, size)
    _fill_at(id(data) + sys.getsizeof(data) - size - 1, fd, offset, size)
    return data


def _array(fd: int, offset: int, size: int, form: tuple[Any, tuple[int, ...], bool]) -> object:
    described, shape, fortran = form
    try:
        numpy = importlib.import_module("numpy")
        words = importlib.import_module("numpy.lib.format")
        importlib.import_module("numpy.random")  # numpy imports it lazily
    # Boundary: importing runs any code of the interpreter's installation.
    except Exception as error:
        raise SandboxError(f"numpy, for an array: {type(error).__name__}: {error}") from error
    array = numpy.empty(shape, words.descr_to_dtype(described), order="F" if fortran else "C")
    if size:  # numpy asks for huge pages itself
        _fill(memoryview((array.T if fortran else array).reshape(-1).view("u1")), fd, offset)
    return array


_MAKE: dict[str, Callable[[int, int, int, Any], object]] = {
    "value": _value,
    "text": _text,
    "bytes": _bytes,
    "array": _array,
}
