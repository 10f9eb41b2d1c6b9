"""Equality of an answer, which is JSON, and the expected value, which may be of Python's types."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import fields, is_dataclass
from typing import Any


def answers_match(expected: Any, value: Any) -> bool:
    """Return whether two JSON values are equal: 1 equals 1.0 but, unlike in Python, not true.

    `expected` may also contain tuples, numpy arrays, dataclasses, pydantic models, and sets, whose
    items match in any order.
    """
    if isinstance(expected, (set, frozenset)):
        return _same_items(expected, value)
    expected = _as_json(expected)
    if isinstance(expected, bool) or isinstance(value, bool):
        return expected is value
    if isinstance(expected, list) and isinstance(value, list):
        return len(expected) == len(value) and all(map(answers_match, expected, value))
    if isinstance(expected, dict) and isinstance(value, dict):
        return expected.keys() == value.keys() and all(
            answers_match(expected[key], value[key]) for key in expected
        )
    return bool(expected == value)


def _as_json(expected: Any) -> Any:
    """Return `expected` in its JSON form; contained values stay as they are."""
    if isinstance(expected, tuple):
        return list(expected)
    if hasattr(expected, "tolist"):  # numpy, pandas, torch; a scalar becomes a number
        return expected.tolist()
    if hasattr(expected, "model_dump") and not isinstance(expected, type):
        return expected.model_dump(mode="json")
    if is_dataclass(expected) and not isinstance(expected, type):
        return {field.name: getattr(expected, field.name) for field in fields(expected)}
    return expected


def _same_items(expected: set[Any] | frozenset[Any], value: Any) -> bool:
    if not isinstance(value, list) or len(value) != len(expected):
        return False
    return {_item(each) for each in expected} == {_item(each) for each in value}


def _item(value: Any) -> Hashable:
    """Return a hashable key, equal for equal items; an unhashable item equals nothing."""
    value = _as_json(value)
    if isinstance(value, bool):
        return "true" if value else "false", bool
    if isinstance(value, (list, tuple)):
        return tuple(map(_item, value))
    return value if isinstance(value, Hashable) else object()
