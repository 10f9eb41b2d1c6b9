"""Fingerprints: small values that show, at bounded cost, whether an object changed in place.

Two fingerprints of an unchanged object are equal. A fingerprint refers to no object of the user's:
it consists of small scalars, hashes of text, and identities. No code of the user's runs. Changes
deep inside an object, or between the samples of a large one, are missed.
"""

from __future__ import annotations

import collections
from collections.abc import Callable
from itertools import islice
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

from ..namespace.library_types import frame_blocks, is_array, is_frame
from ..namespace.safe_inspect import instance_dict, read

# A collection of at most this many items is compared item by item.
SAMPLE = 64
# Longer texts are distinguished by length and identity, because hashing them takes time.
_TEXT = 4_096
_BITS = 64
# Elements of an array that are compared: all of a small one, evenly spread ones of a large one.
_ELEMENTS = 256


def mark(value: Any, sample: int = SAMPLE) -> object:
    """Return the fingerprint of `value`, from about `sample` of its items.

    Raises:
        RuntimeError: another thread changes it meanwhile.
    """
    cls = type(value)
    make = _BY_IDENTITY.get(id(cls))
    if make is not None:
        return make(value, sample)
    if is_array(value):
        return _array(value)
    if is_frame(value):
        return [_array(block) for block in frame_blocks(value)[:sample]]
    for base in _COLLECTIONS:
        if issubclass(cls, base):
            return _MARKS[base](value, sample), _attributes(value, sample)
    return _attributes(value, sample)


def is_scalar(value: object) -> bool:
    """Return whether replacing it by an equal object is no change: a number, a text or None."""
    return id(type(value)) in _SCALAR_IDS


def is_small(value: Any) -> bool:
    """Return whether keeping the value itself costs nothing notable: a scalar of a few bytes."""
    cls = type(value)
    if cls is int:
        return bool(value.bit_length() <= _BITS)
    return value is None or cls is bool or cls is float or (cls is str and len(value) <= _BITS)


def _token(value: Any) -> object:
    """Return the token of an item: its value if it is a scalar, else its identity and length."""
    cls = type(value)
    if cls is float or cls is bool or value is None:
        return cls, value
    if cls is int:
        return value if value.bit_length() <= _BITS else (value.bit_length(), id(value))
    if cls is str or cls is bytes:
        return cls, len(value), hash(value) if len(value) <= _TEXT else id(value)
    if id(cls) in _SIZED:
        return id(value), len(value)
    return id(value)


def _scalar(value: Any, sample: int) -> object:
    return _token(value)


def _identity(value: object, sample: int) -> object:
    return None


def _list(value: list[Any], sample: int) -> object:
    count = list.__len__(value)
    if count <= sample:
        return count, [_token(item) for item in list.__iter__(value)]
    take = list.__getitem__
    end = sample // 4
    middle = slice(end, count - end, (count - 2 * end) // (sample - 2 * end) + 1)
    items = [*take(value, slice(end)), *take(value, middle), *take(value, slice(-end, None))]
    return count, [_token(item) for item in items]


def _tuple(value: tuple[Any, ...], sample: int) -> object:
    """Return the tokens of mutable items: a tuple itself stays the same."""
    return [_token(item) for item in islice(tuple.__iter__(value), sample)]


def _first(base: Any) -> Callable[[Any, int], object]:
    """Return the length and the first items of a value that can only be iterated."""

    def make(value: Any, sample: int) -> object:
        return base.__len__(value), [_token(item) for item in islice(base.__iter__(value), sample)]

    return make


def _dict(value: dict[Any, Any], sample: int) -> object:
    count = dict.__len__(value)
    items = islice(dict.items(value), sample)
    tokens = [(_token(key), _token(item)) for key, item in items]
    if count > sample:
        last = islice(reversed(dict.items(value)), sample // 2)
        tokens += [(_token(key), _token(item)) for key, item in last]
    return count, tokens


def _bytearray(value: bytearray, sample: int) -> object:
    take = bytearray.__getitem__
    head, tail = bytes(take(value, slice(_TEXT))), bytes(take(value, slice(-_TEXT, None)))
    return bytearray.__len__(value), hash(head), hash(tail)


def _attributes(value: object, sample: int) -> object:
    attributes = instance_dict(value)
    return None if attributes is None else _dict(attributes, sample)


def _array(value: Any) -> object:
    """Return the shape of a numpy array and some elements; of another kind, its identity."""
    if not is_array(value):
        return id(value)
    elements = read(value, "flat")[:: read(value, "size") // _ELEMENTS + 1]
    return read(value, "shape"), id(read(value, "dtype")), hash(elements.tobytes())


_SCALARS = (int, float, bool, str, bytes, type(None))
_FIXED = (complex, range, frozenset, FunctionType, BuiltinFunctionType, ModuleType, type)

# Fingerprint by class. Values that cannot change in place need only their identity.
_MARKS: dict[type, Callable[[Any, int], object]] = {
    **dict.fromkeys(_SCALARS, _scalar),
    **dict.fromkeys(_FIXED, _identity),
    list: _list,
    tuple: _tuple,
    dict: _dict,
    set: _first(set),
    collections.deque: _first(collections.deque),
    bytearray: _bytearray,
}
_COLLECTIONS = (dict, list, set, collections.deque, bytearray, tuple)

# By identity, because a class may have a user's metaclass with its own hash.
_SCALAR_IDS = frozenset(map(id, _SCALARS))
_BY_IDENTITY = {id(cls): make for cls, make in _MARKS.items()}
_SIZED = frozenset(map(id, (list, dict, set, bytearray, collections.deque)))
