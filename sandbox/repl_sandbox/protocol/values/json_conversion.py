"""Values as JSON carries them: the one rule for whatever crosses between host and session.

Arguments and results of host functions, `Session.set` and `get`, answers. docs/values.md has the
table. Nothing is imported for a class: one that a value has, its library has loaded.
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

# Elements of an iterable that is no list: a generator may have no end, and a range of 10**12
# numbers is as short to write as one of ten. As many as a call's arguments may have values.
MOST_ELEMENTS = 1 << 20

# Bytes as JSON: an object with this key alone, and base64 for its value.
BYTES: Final = "$bytes"

_modules = sys.modules
_mro: Any = type.__dict__["__mro__"].__get__
_class_dict: Any = type.__dict__["__dict__"].__get__
_name: Any = type.__dict__["__name__"].__get__
_module_dict: Any = vars(ModuleType)["__dict__"].__get__

_Convert = Callable[[Any], object]


def encoded(value: object, *, ascii_only: bool = True, any_keys: bool = False) -> str:
    """`value` as JSON text. Keys of dicts must be texts, as JSON has no others.

    `any_keys`: numbers, truth values and None may be keys, and are written as JSON writes them.

    Raises:
        TypeError: JSON has no form for a part of it.
        ValueError: a number is not finite, it contains itself, is nested too deeply, or has an
            iterable of more than `MOST_ELEMENTS`.
        what the value's own classes raise when they are read.
    """
    made: list[object] = []
    try:
        text = _plain(value, ascii_only)
        if text is None:
            text = _Conversion(ascii_only, made).encode(value)
        for each in (value, *made):
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


# How Python's encoder begins what it says of these.
_BAD_KEY = "keys must be "
_NOT_FINITE = "Out of range float"


def _refuse(value: object) -> object:
    raise TypeError(f"an object of type {_name(type(value))} has no form in JSON")


# With a `default` of their own: the class has one that libraries and code replace.
_FORM: Final[dict[str, Any]] = {"separators": (",", ":"), "allow_nan": False}
_PLAIN: Final = {
    ascii_only: json.JSONEncoder(ensure_ascii=ascii_only, default=_refuse, **_FORM).encode
    for ascii_only in (True, False)
}
_decode = json.JSONDecoder().decode


def _plain(value: object, ascii_only: bool) -> str | None:
    """`value` as JSON text if it needs no conversion.

    None, not the error, for an error of the conversion is not to show this one as its context.
    """
    try:
        return _PLAIN[ascii_only](value)
    except TypeError:
        return None


class _Conversion:
    """One value on its way to JSON. `made`: what stands in place of what JSON does not know."""

    def __init__(self, ascii_only: bool, made: list[object]) -> None:
        self._made = made
        self._by_class: dict[int, tuple[type, _Convert]] = {}
        convert = self._convert
        self.encode = json.JSONEncoder(ensure_ascii=ascii_only, default=convert, **_FORM).encode

    def _convert(self, value: Any) -> object:
        cls = type(value)
        # By identity: a metaclass may define how classes are compared.
        if id(cls) not in self._by_class:
            self._by_class[id(cls)] = cls, self._way(value)
        found = self._by_class[id(cls)][1](value)
        self._made.append(found)
        return found

    def _way(self, value: Any) -> _Convert:
        """How values of this class are converted."""
        cls = type(value)
        for module, name, convert in _CLASSES:
            known = _loaded(module, name)
            if known is not None and issubclass(cls, known):
                return convert
        for attribute, convert in _ATTRIBUTES:
            if any(attribute in _class_dict(base) for base in _mro(cls)):
                return convert
        for kinds, convert in _KINDS:
            if isinstance(value, kinds):
                return convert
        return self._sorted if isinstance(value, AbstractSet) else _refuse

    def _sorted(self, value: Any) -> list[Any]:
        """Sorted by their texts, so that equal sets are equal lists."""
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
    # Of pandas' NaT, which says that there is none, as NaN does of numbers: it differs from itself.
    return value.isoformat() if value == value else None  # noqa: PLR0124


def _duration(value: Any) -> object:
    return value.total_seconds() if value == value else None  # noqa: PLR0124


def _numbers(value: Any) -> object:
    """An array or a number of numpy. Its dates finer than Python's would become integers."""
    if value.dtype.kind in "mM" and value.dtype.str[4:6] in ("ns", "ps", "fs", "as"):
        value = value.astype(f"{value.dtype.kind}8[us]")
    found = value.tolist()
    return float(found) if type(found) is type(value) else found  # numpy.longdouble


def elements(value: Any) -> list[Any]:
    """The elements of an iterable; ValueError if it has more than `MOST_ELEMENTS`."""
    found = list(itertools.islice(iter(value), MOST_ELEMENTS + 1))
    if len(found) > MOST_ELEMENTS:
        kind = _name(type(value))
        raise ValueError(f"an object of type {kind} has more than {MOST_ELEMENTS:,} elements")
    return found


def _fields(value: Any) -> object:
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


def _rows(value: Any) -> object:
    """The rows of a DataFrame; pandas would leave out one of two columns of the same name."""
    if not value.columns.is_unique:
        raise ValueError("two columns of a DataFrame have one name")
    return value.to_dict("records")


def _model(value: Any) -> object:
    return value.model_dump() if hasattr(value, "model_dump") else value.dict()


# Classes, with those derived from them, by the modules that have them once they are loaded. The
# first row counts: an Enum may be a Decimal too.
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
# Attributes, looked up in the class, that decide for any class that has them.
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
# And the rest, by what it is registered as. An object that is merely iterable is refused: to list a
# graph's nodes would lose its edges. Of a file, code is to say whether it means lines or text.
_KINDS: Final[tuple[tuple[Any, _Convert], ...]] = (
    ((type, io.IOBase), _refuse),
    (SimpleNamespace, vars),
    (Mapping, lambda value: dict(value.items())),
    ((MappingView, Sequence, Iterator), elements),
)
