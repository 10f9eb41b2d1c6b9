"""Previews of values of numpy, pandas, torch and the standard library.

Each class is recognised only as the loaded library's own, by identity; nothing is imported.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

from .safe_inspect import MISSING, instance_dict, is_a, loaded_class, lookup, plain, read, type_name

_repr = repr
_LONGEST = 200  # characters; a scalar may be a long text


def is_array(value: object) -> bool:
    """Return whether `value` is a numpy array, not of a subclass.

    A class in numpy's place lacks the C field for the size.
    """
    return is_a(value, "numpy", "ndarray") and type(read(value, "nbytes")) is int


def is_frame(value: object) -> bool:
    """Return whether `value` is a pandas DataFrame or Series, not of a subclass."""
    return is_a(value, "pandas", "DataFrame") or is_a(value, "pandas", "Series")


def frame_shape(frame: Any) -> tuple[int, ...] | None:
    """Return the shape of a pandas frame or series, which only pandas' own Python code knows."""
    shape: Any = lookup(type(frame), "shape")
    getter: Any = shape.fget if type(shape) is property else None
    if type(getter) is not FunctionType or getter.__code__.co_filename.startswith("<cell "):
        return None  # not pandas' own: the user replaced it
    found = getter(frame)
    return found if type(found) is tuple else None


def frame_blocks(frame: object) -> tuple[Any, ...]:
    """Return the arrays of a pandas frame or series, each with several columns."""
    manager = dict.get(instance_dict(frame) or {}, "_mgr")
    blocks = read(manager, "blocks")  # a field of a frame's manager, an attribute of a series'
    if blocks is MISSING:
        blocks = dict.get(instance_dict(manager) or {}, "blocks")
    return tuple(read(block, "values") for block in blocks) if type(blocks) is tuple else ()


def _array(value: Any) -> str:
    dtype = read(value, "dtype")
    name = read(dtype, "name")
    kind = name if type(name) is str else plain(_repr(dtype))
    return f"{type_name(value)} of shape {tuple(read(value, 'shape'))}, {kind}"


def _frame(value: Any) -> str | None:
    shape = frame_shape(value)
    return None if shape is None else f"{type_name(value)} of shape {shape}"


def _moment(value: Any) -> str | None:
    zone = read(value, "tzinfo")
    # A tzinfo may be of a user's class, whose code would return the offset.
    return _repr(value) if zone is None or zone is MISSING else None


def _pattern(value: Any) -> str | None:
    kind = type(value.pattern)
    return _repr(value) if kind is str or kind is bytes else None


def _path(value: Any) -> str | None:
    parts = read(value, "_raw_paths")  # since 3.12, where the parts are kept as given
    if parts is not MISSING and any(type(part) is not str for part in parts):
        return None
    return f"{type_name(value)}({str(value)!r})"


# Classes of libraries, recognised only as the loaded library's own.
_LIBRARY: dict[tuple[str, str], Callable[[Any], str | None]] = {
    ("numpy", "ndarray"): _array,
    ("torch", "Tensor"): _array,
    ("pandas", "DataFrame"): _frame,
    ("pandas", "Series"): _frame,
    ("datetime", "datetime"): _moment,
    ("datetime", "time"): _moment,
    ("datetime", "date"): _repr,
    ("datetime", "timedelta"): _repr,
    ("decimal", "Decimal"): _repr,
    ("re", "Pattern"): _pattern,
    ("pathlib", "PosixPath"): _path,
    ("pathlib", "PurePosixPath"): _path,
}
_LIBRARY_NAMES = frozenset(name for _, name in _LIBRARY)


def library_preview(value: object) -> str | None:
    """Return a short preview of `value` if its class is a known library's, else None."""
    name = type_name(value)
    if name not in _LIBRARY_NAMES:
        return _numpy_scalar(value, name)
    for (module, cls), render in _LIBRARY.items():
        if cls == name and is_a(value, module, cls):
            return render(value)
    return None


def _numpy_scalar(value: Any, name: str) -> str | None:
    generic = loaded_class("numpy", "generic")
    if generic is None or not issubclass(type(value), generic) or not is_a(value, "numpy", name):
        return None
    item: Any = lookup(generic, "item")
    return f"{name}({_repr(item(value))})"[:_LONGEST]
