"""Whether an answer, which is JSON, is the value that was expected, of JSON's kinds or Python's."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import fields, is_dataclass
from typing import Any


def answers_match(expected: Any, value: Any) -> bool:
    """Whether two JSON values are the same: 1 and 1.0 are, and unlike in Python, 1 and true not.

    `expected` may also be, or hold, what JSON carries as another kind: tuples, arrays of numpy's,
    dataclasses and models of pydantic, and sets, whose items may come in any order.
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
    """`expected` as JSON has it, if it is of another kind; what it holds stays as it is."""
    if isinstance(expected, tuple):
        return list(expected)
    if hasattr(expected, "tolist"):  # numpy's, pandas', torch's; a scalar becomes a number
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
    """Equal for items that are the same value; what a set cannot hold is equal to nothing."""
    value = _as_json(value)
    if isinstance(value, bool):
        return "true" if value else "false", bool
    if isinstance(value, (list, tuple)):
        return tuple(map(_item, value))
    return value if isinstance(value, Hashable) else object()
