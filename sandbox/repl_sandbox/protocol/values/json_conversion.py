"""Conversion of Python values to JSON: the one rule for all values between host and session.

It applies to arguments and results of host functions, `Session.set` and `get`, and answers;
docs/values.md has the table. The conversion imports nothing: the library of a value's class is
loaded already.
"""

from __future__ import annotations

import base64
import dataclasses
import io
import itertools
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, MappingView, Sequence
from collections.abc import Set as AbstractSet
from types import ModuleType, SimpleNamespace
from typing import Any, Final

from .json_keys import check_keys

# Elements of an iterable that is not a list: a generator may have no end, and a range of 10**12
# numbers is as short to write as a range of ten. The limit equals the values of a call's arguments.
MAX_ELEMENTS = 1 << 20

# Bytes as JSON: an object with only this key, and base64 as its value.
BYTES: Final = "$bytes"

_modules = sys.modules
_mro: Any = type.__dict__["__mro__"].__get__
_class_dict: Any = type.__dict__["__dict__"].__get__
_name: Any = type.__dict__["__name__"].__get__
_module_dict: Any = vars(ModuleType)["__dict__"].__get__

_Convert = Callable[[Any], object]


def encoded(value: object, *, ascii_only: bool = True, any_keys: bool = False) -> str:
    """Return `value` as JSON text. Keys of dicts must be text, as in JSON itself.

    `any_keys`: allow numbers, truth values and None as keys, and write them as JSON does.

    Raises:
        TypeError: JSON has no form for a part of the value.
        ValueError: a number is not finite, the value contains itself, is nested too deeply, or has
            an
            iterable of more than `MAX_ELEMENTS`.
        Exception: any exception of the value's own classes.
    """
    converted: list[object] = []
    try:
        text = _plain(value, ascii_only)
        if text is None:
            text = _Conversion(ascii_only, converted).encode(value)
        for each in (value, *converted):
            check_keys(each, texts_only=not any_keys)
    except RecursionError:
        raise ValueError("it is nested too deeply for JSON") from None
    except TypeError as error:
        if str(error).startswith(_BAD_KEY):
            kind = str(error).rpartition(" ")[2]
            raise TypeError(f"a key of a dict is {kind}; JSON has texts alone for keys") from None
        raise
    except ValueError as error:
        if str(error).startswith(_NOT_FINITE):
            raise ValueError(
                "nan and infinities are no JSON; put None or a text in their place"
            ) from None
        raise
    return text


# Beginning of the encoder's message about bad keys.
_BAD_KEY = "keys must be "
_NOT_FINITE = "Out of range float"


def _refuse(value: object) -> object:
    raise TypeError(f"an object of type {_name(type(value))} has no form in JSON")


# Encoders with their own `default`: libraries and session code may replace the class's.
_FORM: Final[dict[str, Any]] = {"separators": (",", ":"), "allow_nan": False}
_PLAIN: Final = {
    ascii_only: json.JSONEncoder(ensure_ascii=ascii_only, default=_refuse, **_FORM).encode
    for ascii_only in (True, False)
}
_decode = json.JSONDecoder().decode


def _plain(value: object, ascii_only: bool) -> str | None:
    """Return `value` as JSON text if it needs no conversion, else None.

    None in place of the exception keeps it out of the context of a later conversion error.
    """
    try:
        return _PLAIN[ascii_only](value)
    except TypeError:
        return None


class _Conversion:
    """Conversion of one value to JSON. `made`: replacements for parts unknown to JSON."""

    def __init__(self, ascii_only: bool, converted: list[object]) -> None:
        self._converted = converted
        self._by_class: dict[int, tuple[type, _Convert]] = {}
        convert = self._convert
        self.encode = json.JSONEncoder(ensure_ascii=ascii_only, default=convert, **_FORM).encode

    def _convert(self, value: Any) -> object:
        cls = type(value)
        # Key by identity: a metaclass may define comparison of classes.
        if id(cls) not in self._by_class:
            self._by_class[id(cls)] = cls, self._conversion_of(value)
        found = self._by_class[id(cls)][1](value)
        self._converted.append(found)
        return found

    def _conversion_of(self, value: Any) -> _Convert:
        """Return the function that converts values of this class."""
        cls = type(value)
        for module, name, convert in _CLASSES:
            cls_of_library = _loaded(module, name)
            if cls_of_library is not None and issubclass(cls, cls_of_library):
                return convert
        for attribute, convert in _ATTRIBUTES:
            if any(attribute in _class_dict(base) for base in _mro(cls)):
                return convert
        for kinds, convert in _KINDS:
            if isinstance(value, kinds):
                return convert
        return self._sorted if isinstance(value, AbstractSet) else _refuse

    def _sorted(self, value: Any) -> list[Any]:
        """Return the elements sorted by their JSON text, so that equal sets become equal lists."""
        return [_decode(text) for text in sorted(map(self.encode, elements(value)))]


def _loaded(module: str, name: str) -> type | None:
    found = _modules.get(module)
    if not issubclass(type(found), ModuleType):
        return None
    cls = _module_dict(found).get(name)
    return cls if issubclass(type(cls), type) else None


def _bytes(value: Any) -> object:
    return {BYTES: base64.b64encode(value).decode("ascii")}


def _time(value: Any) -> object:
    # NaT of pandas stands for a missing value, as NaN does among numbers: it differs from itself.
    return value.isoformat() if value == value else None  # noqa: PLR0124


def _duration(value: Any) -> object:
    return value.total_seconds() if value == value else None  # noqa: PLR0124


def _numbers(value: Any) -> object:
    """Convert a numpy array or scalar. Dates finer than microseconds would become integers."""
    if value.dtype.kind in "mM" and value.dtype.str[4:6] in ("ns", "ps", "fs", "as"):
        value = value.astype(f"{value.dtype.kind}8[us]")
    found = value.tolist()
    return float(found) if type(found) is type(value) else found  # numpy.longdouble


def elements(value: Any) -> list[Any]:
    """Return the elements of an iterable; ValueError for more than `MAX_ELEMENTS`."""
    found = list(itertools.islice(iter(value), MAX_ELEMENTS + 1))
    if len(found) > MAX_ELEMENTS:
        kind = _name(type(value))
        raise ValueError(f"an object of type {kind} has more than {MAX_ELEMENTS:,} elements")
    return found


def _fields(value: Any) -> object:
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


def _rows(value: Any) -> object:
    """Return the rows of a DataFrame; pandas itself drops one of two columns of one name."""
    if not value.columns.is_unique:
        raise ValueError("two columns of a DataFrame have one name")
    return value.to_dict("records")


def _model(value: Any) -> object:
    return value.model_dump() if hasattr(value, "model_dump") else value.dict()


# Classes and their subclasses, by the module that defines them, considered only when that module is
# loaded. The first matching row decides: an Enum may be a Decimal too.
_CLASSES: Final[tuple[tuple[str, str, _Convert], ...]] = (
    ("enum", "Enum", lambda value: value.value),
    ("builtins", "bytes", _bytes),
    ("builtins", "bytearray", _bytes),
    ("builtins", "memoryview", _bytes),
    ("datetime", "date", _time),
    ("datetime", "time", lambda value: value.isoformat()),
    ("datetime", "timedelta", _duration),
    ("decimal", "Decimal", str),
    ("fractions", "Fraction", str),
    ("uuid", "UUID", str),
    ("collections", "UserString", str),
    ("numpy", "generic", _numbers),
    ("numpy", "ndarray", _numbers),
    ("pandas", "DataFrame", _rows),
    ("pandas", "Period", str),
    ("pandas._libs.missing", "NAType", lambda value: None),
    ("pydantic", "BaseModel", _model),
)
# Attributes, looked up in the class, that decide for any class with the attribute.
_ATTRIBUTES: Final[tuple[tuple[str, _Convert], ...]] = (
    ("tolist", lambda value: value.tolist()),  # pandas' Series and Index, tensors, array.array
    ("to_list", lambda value: value.to_list()),  # polars
    ("to_dicts", lambda value: value.to_dicts()),
    ("__fspath__", os.fspath),
    ("__dataclass_fields__", _fields),
    (
        "__attrs_attrs__",
        lambda value: {a.name: getattr(value, a.name) for a in value.__attrs_attrs__},
    ),
)
# All other values, by abstract base class. A merely iterable object is refused: listing a graph's
# nodes would lose its edges. Code must say whether it means the lines or the text of a file.
_KINDS: Final[tuple[tuple[Any, _Convert], ...]] = (
    ((type, io.IOBase), _refuse),
    (SimpleNamespace, vars),
    (Mapping, lambda value: dict(value.items())),
    ((MappingView, Sequence, Iterator), elements),
)
