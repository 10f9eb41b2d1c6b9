"""Replacements for library functions that read attributes of any name.

They cover the common uses of the originals. A cell gets them under the originals' names.
"""

from __future__ import annotations

import copy as library
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

_MISSING = object()


def partial(function: Callable[..., Any], /, *args: Any, **keywords: Any) -> Callable[..., Any]:
    """Return a function that calls `function` with these arguments before its own."""

    def call(*more: Any, **others: Any) -> Any:
        return function(*args, *more, **{**keywords, **others})

    return call


def reduce(function: Callable[[Any, Any], Any], values: Iterable[Any], *start: Any) -> Any:
    """Return `values` folded from the left by `function`, beginning with `start` if it is given."""
    if len(start) > 1:
        raise TypeError(f"reduce expected at most 3 arguments, got {len(start) + 2}")
    iterator = iter(values)
    result = start[0] if start else next(iterator, _MISSING)
    if result is _MISSING:
        raise TypeError("reduce() of empty iterable with no initial value")
    for value in iterator:
        result = function(result, value)
    return result


def wraps(wrapped: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that gives a function the name and docstring of `wrapped`."""

    def decorate(wrapper: Callable[..., Any]) -> Callable[..., Any]:
        for name in ("__name__", "__qualname__", "__doc__"):
            text = getattr(wrapped, name, None)
            if type(text) is str and callable(wrapper):
                setattr(wrapper, name, text)
        return wrapper

    return decorate


def copy(value: Any) -> Any:
    """Return a shallow copy of `value`."""
    return library.copy(value)


def deepcopy(value: Any) -> Any:
    """Return a deep copy of `value`, without the memo, which would expose internals."""
    return library.deepcopy(value)


# By module and name, as in the `replaced` fields of `modules.py`.
STAND_INS: dict[str, dict[str, object]] = {
    "copy": {"copy": copy, "deepcopy": deepcopy},
    "functools": {"partial": partial, "reduce": reduce, "wraps": wraps},
}


class GuardedFormatter(string.Formatter):
    """`str.format` whose fields the guards read."""

    def __init__(
        self, attribute: Callable[[object, str], object], item: Callable[[Any, Any], object]
    ) -> None:
        self._attribute = attribute
        self._item = item

    def get_field(
        self, field_name: str, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[Any, Any]:
        """Return the value of a field such as `0.name[key]`, and its first part."""
        first, rest = string._string.formatter_field_name_split(field_name)  # type: ignore[attr-defined]
        value = self.get_value(first, args, kwargs)
        for is_attribute, key in rest:
            value = self._attribute(value, key) if is_attribute else self._item(value, key)
        return value, first
