"""Whether an answer, which is JSON, is the value that was expected, of JSON's kinds or Python's."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any


def same_value(expected: Any, value: Any) -> bool:
    """Whether two JSON values are the same: 1 and 1.0 are, and unlike in Python, 1 and true not.

    `expected` may also be, or hold, what JSON carries as another kind: tuples, arrays of numpy's,
    and sets, whose items may come in any order.
    """
    if isinstance(expected, (set, frozenset)):
        return _same_items(expected, value)
    if isinstance(expected, tuple):
        expected = list(expected)
    elif hasattr(expected, "tolist"):  # numpy's, pandas', torch's; a scalar becomes a number
        expected = expected.tolist()
    if isinstance(expected, bool) or isinstance(value, bool):
        return expected is value
    if isinstance(expected, list) and isinstance(value, list):
        return len(expected) == len(value) and all(map(same_value, expected, value))
    if isinstance(expected, dict) and isinstance(value, dict):
        return expected.keys() == value.keys() and all(
            same_value(expected[key], value[key]) for key in expected
        )
    return bool(expected == value)


def _same_items(expected: set[Any] | frozenset[Any], value: Any) -> bool:
    if not isinstance(value, list) or len(value) != len(expected):
        return False
    return {_item(each) for each in expected} == {_item(each) for each in value}


def _item(value: Any) -> Hashable:
    """Equal for items that are the same value; what a set cannot hold is equal to nothing."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, bool):
        return "true" if value else "false", bool
    if isinstance(value, (list, tuple)):
        return tuple(map(_item, value))
    return value if isinstance(value, Hashable) else object()
