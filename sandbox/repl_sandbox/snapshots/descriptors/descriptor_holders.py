"""Finds the variables that hold objects of certain descriptors, also deep in containers and
objects.

No code of the session runs: objects are inspected by methods of C types.
"""

from __future__ import annotations

import _socket
import gc
import io
import select
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    ModuleType,
)
from typing import Any

from ...worker.namespace.trusted_imports import loaded_class

# The most objects to inspect: the process that takes over is waited for.
_MAX_OBJECTS = 100_000
_FILENO_METHODS: tuple[tuple[type, Callable[[Any], int]], ...] = (
    (io.FileIO, io.FileIO.fileno),
    (_socket.socket, _socket.socket.fileno),
    (select.epoll, select.epoll.fileno),
)
# Objects without contents of their own, or that lead to everything.
_PASSED_BY = (
    *(bool, int, float, complex, str, bytes, bytearray, type(None), type),
    *(ModuleType, BuiltinFunctionType, CodeType),
)
# Of a function: its globals lead to all variables.
_OF_FUNCTION: tuple[Callable[[Any], object], ...] = tuple(
    vars(FunctionType)[name].__get__
    for name in ("__closure__", "__defaults__", "__kwdefaults__", "__dict__")
)
_class_dict: Callable[[Any], Mapping[str, object]] = vars(type)["__dict__"].__get__
_get_referents = gc.get_referents


def holders(
    variables: Iterable[tuple[str, object]], numbers: set[int], other: object
) -> tuple[dict[int, str], str]:
    """By number, the first variable that holds an object of this descriptor; likewise for `other`.

    "" for `other` if no variable holds it.
    """
    found: dict[int, str] = {}
    holds_other = ""
    for name, each in _reachable(variables):
        if each is other:
            holds_other = holds_other or name
        elif (fd := _number(each)) in numbers:
            found.setdefault(fd, name)
    return found, holds_other


def _reachable(variables: Iterable[tuple[str, object]]) -> Iterator[tuple[str, object]]:
    """Yield each object that a variable leads to, once, with the first variable that does."""
    seen: set[int] = set()
    for name, value in variables:
        waiting = _of_own_class(value) if issubclass(type(value), type) else [value]
        while waiting:
            each = waiting.pop()
            if issubclass(type(each), _PASSED_BY) or id(each) in seen:
                continue
            if len(seen) >= _MAX_OBJECTS:
                return
            seen.add(id(each))
            yield name, each
            waiting += _referents(each)


def _of_own_class(cls: Any) -> list[object]:
    """The attributes of a class that cells have defined; a library's may lead to anything."""
    attributes = _class_dict(cls)
    return list(attributes.values()) if attributes.get("__module__") == "__main__" else []


def _referents(each: object) -> list[Any]:
    if type(each) is FunctionType:
        return [part(each) for part in _OF_FUNCTION]
    return _get_referents(each)


def _number(each: object) -> int:
    """The descriptor of an object that has one, -1 of any other."""
    kind = type(each)
    try:
        for cls, fileno in _FILENO_METHODS:
            if issubclass(kind, cls):
                return fileno(each)
        connection = loaded_class("multiprocessing.connection", "Connection")
        if connection is not None and issubclass(kind, connection):
            handle = each.__dict__.get("_handle")
            return handle if type(handle) is int else -1
    except (AttributeError, TypeError, ValueError):  # closed, or made unusable by the code
        pass
    return -1
