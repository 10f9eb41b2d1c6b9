"""Values between host and session: the one rule for JSON, its bounds, raw arguments, and names."""

from __future__ import annotations

import array
import base64
import dataclasses
import io
import itertools
import json
import keyword
import math
import os
import re
import sys
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, MappingView, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any, Final, TypeAlias, cast

from ..errors import RemoteProtocolError
from ..types import ANSWER_NAMES, JSON

# Check for keys of a dict that collide in JSON, such as `1` and `"1"`: one value would be lost.
#
# JSON keys are text only. Python's encoder writes a number, a truth value or None as the text of
# that value and emits both keys; a reader keeps the last.

_text = json.JSONEncoder().encode
_CONTAINERS = (dict, list, tuple)
_TEXTS = frozenset({str})


class Labelled(dict[Any, Any]):
    """The entries of a Series by their labels; an error names them as such."""


def check_keys(value: Any, *, texts_only: bool = False) -> None:
    """Raise ValueError if two keys of one dict in `value` collide in JSON.

    JSON must be able to carry `value`: no cycles, bounded depth. With `texts_only`, a key that is
    not text raises TypeError, although JSON could carry it as text.
    """
    rest = [value] if isinstance(value, _CONTAINERS) else []
    while rest:
        container = rest.pop()
        parts: Iterable[Any] = container
        if isinstance(container, dict):
            if not _TEXTS.issuperset(map(type, container)):
                _check(container, texts_only)
            parts = list(container.values())  # a copy, because another thread may change the dict
        rest += [each for each in parts if isinstance(each, _CONTAINERS)]


def _check(mapping: dict[Any, Any], texts_only: bool) -> None:
    seen: dict[str, Any] = {}
    keys = list(mapping)
    for key in keys:
        text = key if isinstance(key, str) else _text(key)
        if text in seen:
            raise ValueError(f"its keys {seen[text]!r} and {key!r} are one key in JSON")
        seen[text] = key
    for key in keys:
        if texts_only and not isinstance(key, str):
            kind = type(key).__name__
            if isinstance(mapping, Labelled):
                raise TypeError(
                    f"the label {key!r} of a Series is {kind}, and keys of JSON are texts; "
                    ".tolist() has the values alone, and .reset_index() makes a table of it"
                )
            raise TypeError(f"the key {key!r} of a dict is {kind}; JSON has texts alone for keys")


# Conversion of Python values to JSON: the one rule for all values between host and session.
#
# It applies to arguments and results of host functions, `Session.set` and `get`, and answers;
# docs/values.md has the table. The conversion imports nothing: the library of a value's class is
# loaded already.

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
            an iterable of more than `MAX_ELEMENTS`.
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
        for kinds, convert in _CONVERSIONS:
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
    if value.dtype.names:  # a record, or an array of records
        rows = list(value) if value.ndim else None
        return {name: value[name] for name in value.dtype.names} if rows is None else rows
    if value.dtype.kind in "mM" and value.dtype.str[4:6] in ("ns", "ps", "fs", "as"):
        value = value.astype(f"{value.dtype.kind}8[us]")
    found = value.tolist()
    if value.dtype.kind == "M" and any(type(date) is int for date in value.ravel().tolist()):
        raise ValueError("a date of numpy is outside of the years 1 to 9999")
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
    """Return the rows of a DataFrame, with its index as columns unless it counts the rows.

    pandas itself drops one of two columns of one name.
    """
    if not value.columns.is_unique:
        raise ValueError("two columns of a DataFrame have one name")
    if not _counts(value.index):
        try:
            value = value.reset_index()
        except (ValueError, TypeError) as error:  # a column has the name of the index
            raise ValueError(
                f"the index of a DataFrame cannot be made a column: {error}; "
                ".reset_index(drop=True) leaves it out"
            ) from None
    return _without_nan(value.to_dict("records"))


def _labelled(value: Any) -> object:
    """Return the values of a Series, by their labels unless the index counts them."""
    index, values = value.index, _missing_as_none(value.tolist())
    if _counts(index):
        return values
    if index.nlevels > 1:
        raise TypeError(
            "a Series whose index has several levels has no form in JSON; .reset_index() makes a "
            "table of it"
        )
    if not index.is_unique:
        raise ValueError(
            "two entries of a Series have one label; .tolist() has the values alone, and "
            ".reset_index() makes a table of it"
        )
    labels = map(_label, index.tolist())
    return Labelled(zip(labels, values, strict=True))


def _without_nan(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows with None for NaN, which stands for a missing value in a table."""
    names = list(rows[0]) if rows else []
    if not names:  # an index alone
        return rows
    columns = [_missing_as_none([row[name] for row in rows]) for name in names]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _missing_as_none(values: list[Any]) -> list[Any]:
    if not any(isinstance(each, float) and math.isnan(each) for each in values):
        return values
    return [None if isinstance(each, float) and math.isnan(each) else each for each in values]


def _counts(index: Any) -> bool:
    """Return whether the index of a pandas object is 0, 1, 2 and so on, and has no name."""
    if index.nlevels > 1 or index.name is not None or index.dtype.kind not in "iu":
        return False
    labels: list[object] = index.tolist()
    return labels == list(range(len(labels)))


def _label(label: Any) -> Any:
    """Return a label of a Series as a key: a time as text of ISO 8601, a period as its text."""
    for module, name, convert in _CLASSES:
        cls = _loaded(module, name)
        if (module, name) in _TEXT_LABELS and cls is not None and isinstance(label, cls):
            return convert(label)
    return label


def _model(value: Any) -> object:
    return value.model_dump() if hasattr(value, "model_dump") else value.dict()


# Labels of an index that are keys by their texts; `_CLASSES` has the conversions.
_TEXT_LABELS = {("datetime", "date"), ("datetime", "time"), ("pandas", "Period")}

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
    ("pandas", "Series", _labelled),
    ("pandas", "Period", str),
    ("pandas._libs.missing", "NAType", lambda value: None),
    ("polars", "DataFrame", lambda value: _without_nan(value.to_dicts())),
    ("polars", "Series", lambda value: _missing_as_none(value.to_list())),
    ("pyarrow", "Table", lambda value: _without_nan(value.to_pylist())),
    ("pyarrow", "RecordBatch", lambda value: _without_nan(value.to_pylist())),
    ("pydantic", "BaseModel", _model),
)
# Attributes, looked up in the class, that decide for any class with the attribute.
_ATTRIBUTES: Final[tuple[tuple[str, _Convert], ...]] = (
    ("tolist", lambda value: value.tolist()),  # pandas' Index and arrays, tensors, array.array
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
_CONVERSIONS: Final[tuple[tuple[Any, _Convert], ...]] = (
    ((type, io.IOBase), _refuse),
    (SimpleNamespace, vars),
    (Mapping, lambda value: dict(value.items())),
    ((MappingView, Sequence, Iterator), elements),
)


# Count of the values in a JSON text, before parsing. No I/O.
#
# A parser holds the interpreter and thereby the event loop of its process: some seconds for the
# 64 MiB of a frame that is full of short numbers.

# Matches up to the next delimiter (outside strings) that a further value follows, or to the end. A
# delimiter precedes each key, too.
_NEXT = re.compile(
    rb'(?:[^"\[{,]++|"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z))*+(?:[\[{,]|\Z)', re.DOTALL
)


def more_values(data: bytes, limit: int) -> bool:
    """Return whether the JSON text `data` has more than `limit` values, plus or minus two.

    Counting stops as soon as the limit is exceeded.
    """
    return len(data) > limit and values(data, limit) is None


def values(data: bytes, limit: int) -> int | None:
    """Return about how many values the JSON text `data` has; None for more than `limit`."""
    # Iterators in C: no Python code runs for each value.
    numbered = zip(itertools.count(1), _NEXT.finditer(data), strict=False)
    last = deque(itertools.islice(numbered, limit + 3), maxlen=1)
    found = last[0][0]
    return found if found < limit + 3 else None


# Raw arguments of a call: text and bytes that follow the call's JSON in the blob.
#
# The JSON has null in place of each raw argument. A place is the position or the keyword of an
# argument, so a raw argument is never nested deeper.

# In one call, elements of lists included. A header has room for a row for each.
MAX_PARTS = 1 << 14
MAX_PLACE = 200  # characters of a keyword

_RAW_KINDS = ("str", "bytes")


@dataclass(frozen=True, slots=True)
class RawArgument:
    """Raw bytes of one argument; `kind` is "str" (UTF-8, surrogates passed) or "bytes".

    The reader of a call has checked the length, and has not checked that text is UTF-8.
    """

    kind: str
    data: bytes


Place: TypeAlias = "int | str"
# One part, or one for each element of a list, with None for an element that is None.
Raw: TypeAlias = "RawArgument | tuple[RawArgument | None, ...]"
Parts: TypeAlias = "tuple[tuple[Place, Raw], ...]"


def each_part(raw: Raw) -> Iterator[RawArgument]:
    """Yield the parts of one argument, in order."""
    if isinstance(raw, RawArgument):
        yield raw
    else:
        for part in raw:
            if part is not None:
                yield part


def describe(parts: Parts) -> list[list[Any]]:
    """Return the header rows of `parts`: [place, kind, size], or [place, "list", rows]."""
    return [
        [place, raw.kind, len(raw.data)]
        if isinstance(raw, RawArgument)
        else [place, "list", [part and [part.kind, len(part.data)] for part in raw]]
        for place, raw in parts
    ]


def cut(rows: Any, blob: bytes) -> tuple[bytes, Parts]:
    """Return the JSON at the start of `blob`, and the parts after it that `rows` describe.

    Raises:
        TypeError, ValueError: the rows are malformed, or do not fit the blob.
    """
    if rows == [] and type(rows) is list:
        return blob, ()
    sizes, count = _sizes(rows)
    start = len(blob) - sum(sizes)
    if count > MAX_PARTS or start < 0:
        raise ValueError("parts are more than the blob holds, or than a call may have")
    json, places = blob[:start], set()
    parts: list[tuple[Place, Raw]] = []
    for place, kind, rest in rows:
        if place in places:
            raise ValueError("parts have a place twice")
        places.add(place)
        if kind == "list":
            elements: list[RawArgument | None] = []
            for row in rest:
                elements.append(row and RawArgument(row[0], blob[start : start + row[1]]))
                start += row[1] if row else 0
            parts.append((place, tuple(elements)))
        else:
            parts.append((place, RawArgument(kind, blob[start : start + rest])))
            start += rest
    return json, tuple(parts)


def _sizes(rows: Any) -> tuple[list[int], int]:
    """Return the size of each part, after all fields were checked, and the number of elements."""
    if type(rows) is not list or len(rows) > MAX_PARTS:
        raise TypeError(f"parts are not a list of at most {MAX_PARTS}")
    sizes: list[int] = []
    count = 0
    for row in rows:
        if type(row) is not list or len(row) != 3 or not _is_place(row[0]):
            raise TypeError("a part is not a place, a kind and a size")
        kind, rest = row[1:]
        if kind == "list":
            if type(rest) is not list:
                raise TypeError("a part that is a list has no list of rows")
            count += len(rest)
            sizes += [_size(item) for item in rest if item is not None]
        else:
            count += 1
            sizes.append(_size([kind, rest]))
    return sizes, count


def _is_place(place: Any) -> bool:
    if type(place) is str:
        return len(place) <= MAX_PLACE
    return type(place) is int and 0 <= place < MAX_PARTS


def _size(row: Any) -> int:
    if (
        type(row) is not list
        or len(row) != 2
        or type(row[0]) is not str
        or row[0] not in _RAW_KINDS
        or type(row[1]) is not int
        or row[1] < 0
    ):
        raise TypeError("a part is not a kind and a size")
    size: int = row[1]
    return size


# Text from the other side, cleaned so that it can be encoded again.

LONE_SURROGATE = re.compile("[\ud800-\udfff]")


def clean_text(text: str) -> str:
    """Return `text` with each lone surrogate replaced by U+FFFD."""
    return text if text.isascii() else LONE_SURROGATE.sub("\ufffd", text)


def read_text(data: bytes) -> str:
    """Return text that travels in a blob as UTF-8, possibly with lone surrogates.

    Raises:
        UnicodeDecodeError: `data` is not UTF-8.
    """
    return clean_text(data.decode("utf-8", "surrogatepass"))


# JSON text: written for the other side, and parsed from it within bounds.

# Nesting of lists and objects. Limits of JSON readers depend on the interpreter and its stack
# (serde_json: 128, CPython: some 1,000 to 10,000). This limit is the same on both sides, and the
# host may walk any accepted value by recursion.
MAX_DEPTH = 128
# Lists and objects in one JSON text. Three bytes of text can make an object of 72 bytes, and the
# garbage collector walks each: 64 MiB of `[],` would cost the host 1.5 GB and half a minute.
MAX_CONTAINERS = 1 << 20
# Values in the JSON of a call's arguments. Two bytes can make one value, which takes a host 32
# bytes and a third of a microsecond: 64 MiB of them would block its event loop for five seconds.
MAX_ARGUMENT_VALUES = 1 << 20
# Bytes of an answer's text, and values in an answer. A host inspects, scores and records answers,
# and each of these takes as long as parsing them.
MAX_ANSWER = 8 << 20
MAX_ANSWER_VALUES = 1 << 18
# Bytes as JSON: each byte of a text can be an escape of six, and two quotes surround it.
_LONGEST_ANSWER = 6 * MAX_ANSWER + 2
_SHORT_ANSWER = 1 << 10
# Digits of a number: CPython's own limit for reading one (int's "max_str_digits").
MAX_DIGITS = 4300

# ASCII only: a lone surrogate travels as an escape, and the reader replaces it.
dump_header = json.JSONEncoder(separators=(",", ":"), check_circular=False, allow_nan=False).encode


def dump_json(value: object) -> bytes:
    """Return `value`, converted by `encoded`, as JSON bytes.

    Raises:
        TypeError, ValueError: the protocol cannot carry `value`.
    """
    data = encoded(value).encode()
    if problem := _malformed(data):
        raise ValueError(problem)
    # Python writes longer numbers only after code has lifted the interpreter's limit.
    if len(data) > MAX_DIGITS and not 0 < _most_digits() <= MAX_DIGITS and _has_long_number(data):
        raise ValueError(f"a number of more than {MAX_DIGITS:,} digits")
    return data


_most_digits = sys.get_int_max_str_digits


def parse_json(data: bytes) -> JSON:
    """Parse JSON from the other side; lone surrogates in its text are replaced.

    Raises:
        RemoteProtocolError: not JSON, not UTF-8, not finite, or past `MAX_DEPTH` or
            `MAX_CONTAINERS`.
    """
    if problem := _malformed(data):
        raise RemoteProtocolError(problem)
    return parse_header(data)


def parse_arguments(data: bytes) -> JSON:
    """Parse a call's arguments like `parse_json`, with at most `MAX_ARGUMENT_VALUES` values."""
    if more_values(data, MAX_ARGUMENT_VALUES):
        raise RemoteProtocolError(f"a call with more than {MAX_ARGUMENT_VALUES:,} values")
    return parse_json(data)


def parse_answer(data: bytes) -> JSON:
    """Parse an answer like `parse_json`, with at most `MAX_ANSWER_VALUES` values.

    Raises:
        ValueError: the answer is too large.
    """
    count_answer_values(data)
    return parse_json(data)


def count_answer_values(data: bytes) -> int:
    """Return about how many values an answer has; ValueError if the answer is too large."""
    # Counting would cost more than it saves for a short answer.
    found = len(data) // 2 if len(data) < _SHORT_ANSWER else values(data, MAX_ANSWER_VALUES)
    if found is None or len(data) > _LONGEST_ANSWER:
        raise ValueError(
            f"larger than {MAX_ANSWER >> 20} MiB, or more than {MAX_ANSWER_VALUES:,} values"
        )
    return found


def parse_header(data: bytes) -> JSON:
    """Parse JSON like `parse_json`, without its two limits: a header is too small to need them."""
    try:
        text = data.decode()
        value, end = _scan(text, 0)
        if end != len(text):
            raise ValueError("text after the value")
        # Lone surrogates arrive only as escapes; text without an escape needs no cleaning.
        if "\\u" in text:
            return _clean(value)
    except (ValueError, RecursionError, StopIteration) as error:
        raise RemoteProtocolError(f"not JSON: {error}") from None
    return cast(JSON, value)


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError("a number is too large")
    return value


# The C scanner itself, without the search for white space around the value that `decode` makes: no
# peer of this protocol writes white space there.
_scan = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite).scan_once  # type: ignore[attr-defined]
_TOO_DEEP = f"JSON nested more than {MAX_DEPTH} deep"
_TOO_MANY = f"JSON of more than {MAX_CONTAINERS:,} lists and objects"
# Up to the end of the data if the string is unterminated, so each byte is read once.
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")  # as signed bytes: 1 and -1
_NO_BRACKET = bytes(set(range(256)) - set(b"[{]}"))


def _malformed(data: bytes) -> str:
    """Return the limit that the JSON `data` exceeds, or ""; `data` is not parsed."""
    if data.count(b"[") + data.count(b"{") <= MAX_DEPTH:
        return ""
    steps = _STRING.sub(b"", data).translate(_STEPS, _NO_BRACKET)
    if steps.count(1) > MAX_CONTAINERS:
        return _TOO_MANY
    depth = max(itertools.accumulate(array.array("b", steps)), default=0)
    return _TOO_DEEP if depth > MAX_DEPTH else ""


_LONG_NUMBER = re.compile(rb"[0-9]{%d}" % (MAX_DIGITS + 1))


def _has_long_number(data: bytes) -> bool:
    return _LONG_NUMBER.search(_STRING.sub(b"", data)) is not None


def _clean(value: Any) -> JSON:
    if isinstance(value, str):
        return LONE_SURROGATE.sub("\ufffd", value)
    if isinstance(value, list):
        return [_clean(item) for item in value]
    if isinstance(value, dict):
        return {cast(str, _clean(key)): _clean(item) for key, item in value.items()}
    return cast(JSON, value)


# Rules for names of variables that a host may set in a session.

# The last displayed value and the pages of earlier output, which belong to the REPL.
REPL_NAMES = frozenset({"_", "_out"})
# Names that a session may bind in its own namespace, with or without answers.
RESERVED = frozenset({*ANSWER_NAMES, "HostCallError", "PolicyError"})


def check_name(name: object, argument: str) -> str:
    """Return `name` if code can use it as a variable; else raise TypeError or ValueError.

    `argument` is the name of the caller's argument in the message.
    """
    if not isinstance(name, str):
        raise TypeError(f"{argument}: {name!r} must be a str, not {type(name).__name__}")
    if not name.isidentifier():
        raise ValueError(
            f"{argument}: {name!r} is not a name for a variable: letters, digits and underscores, "
            "and no digit first"
        )
    if keyword.iskeyword(name):
        raise ValueError(f"{argument}: {name!r} is a keyword of Python; give it another name")
    if not name.isascii() and (read := _as_read(name)) != name:
        raise ValueError(f"{argument}: {name!a} is read as {read!a} in code; give it that")
    return name


def check_free(name: object, argument: str, taken: Collection[str] = ()) -> str:
    """Return `name` like `check_name`, and refuse names that sessions reserve, or have `taken`."""
    checked = check_name(name, argument)
    if checked in REPL_NAMES or checked[:2] == "__" == checked[-2:]:
        raise ValueError(f"{argument}: {name!r} is the session's own; give it another name")
    if checked in RESERVED or checked in taken:
        raise ValueError(f"{argument}: the name {name!r} is taken; the session has it already")
    return checked


def _as_read(name: str) -> str:
    from unicodedata import normalize  # imported here, because few names need it

    return normalize("NFKC", name)
