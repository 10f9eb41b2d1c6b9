"""Display of a cell's last expression, like a REPL's, but bounded.

A value with a short repr is shown by its own repr. A huge value is cut before its conversion to
text, so its display takes neither the time nor the memory of the whole repr. The `__repr__` of a
user's class runs as in any REPL, inside the cell and within its time limit.
"""

from __future__ import annotations

from itertools import chain
from typing import Any

from ..namespace.safe_inspect import type_name
from .value_preview import preview, shallow_size

__all__ = ["DISPLAY_LIMIT", "cut", "display", "encodable", "preview", "shallow_size", "type_name"]

# Characters. No reader reads further, and the limit keeps a result well below the largest frame.
DISPLAY_LIMIT = 1 << 20

# Assumed length of an object whose repr is unknown before calling it. Only the number of objects to
# visit depends on it.
_OBJECT = 32
# Containers nested deeper than this are not followed: the walk is recursive, and so may be the
# user's code around it.
_DEPTH = 200

_repr = repr


def _by_id(texts: dict[type, str]) -> dict[int, str]:
    return {id(cls): text for cls, text in texts.items()}


# By the identity of classes: a user's metaclass may define `__eq__`, and no hash.
_OPEN = _by_id({list: "[", tuple: "(", set: "{", frozenset: "frozenset({", dict: "{"})
_CLOSE = _by_id({list: "]", tuple: ")", set: "}", frozenset: "})", dict: "}"})
_ORDERED = frozenset(map(id, (list, tuple, dict)))
_TEXTS = _by_id({str: "characters", bytes: "bytes", bytearray: "bytes"})
_SCALARS = frozenset(map(id, (int, float, bool, complex, type(None))))


def display(value: object, limit: int = DISPLAY_LIMIT) -> str:
    """Return the repr of `value`, with its middle left out beyond `limit` characters.

    Raises:
        Exception: any exception of the `__repr__` of a user's class.
    """
    if id(type(value)) in _SCALARS:
        return _repr(value)
    if _fits(value, limit):
        return encodable(cut(_repr(value), limit))
    return encodable(_bounded(value, limit))


def cut(text: str, limit: int) -> str:
    """Return `text` with its middle beyond `limit` characters replaced by a line with the count."""
    if len(text) <= limit:
        return text
    half = limit // 2
    head, tail = text[:half], text[len(text) - half :]
    return f"{head}\n... [{len(text) - 2 * half:,} characters left out] ...\n{tail}"


def encodable(text: str) -> str:
    """Return `text` with lone surrogates, which no encoding can carry, escaped as in a repr."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace").decode()
    return text


def _fits(value: Any, limit: int) -> bool:
    """Return whether the repr of `value` is at most `limit` long, judging built-in values."""
    return _remaining(value, limit, set()) > 0


def _remaining(value: Any, limit: int, path: set[int]) -> int:
    """Return the rest of `limit` after the repr of `value`; 0 or less as soon as none is left.

    `path` holds the identities of the containers around `value`.
    """
    cls = id(type(value))
    if cls in _TEXTS:
        return limit - len(value) - 2
    if cls in _SCALARS:
        return limit - 3
    if cls not in _OPEN:
        return limit - _OBJECT
    if id(value) in path:  # it contains itself, and its repr says `...`
        return limit - 5
    if len(value) * 3 > limit or len(path) >= _DEPTH:
        return 0
    path.add(id(value))
    items = chain(value, value.values()) if cls == id(dict) else value
    for item in items:
        limit = _remaining(item, limit, path)
        if limit <= 0:
            break
    path.discard(id(value))
    return limit - 2


def _bounded(value: Any, limit: int) -> str:
    """Return both ends of a repr that is too long, without computing the rest."""
    cls = id(type(value))
    if cls not in _OPEN and cls not in _TEXTS:
        return cut(_repr(value), limit)
    half = limit // 2
    head, tail = _End(half, False), _End(half, True)
    head.write(value)
    tail.write(value)
    left_out = (
        f"about {len(value) - 2 * half:,} {_TEXTS[cls]} left out"
        if cls in _TEXTS
        else f"the middle of {len(value):,} items left out"
    )
    first, last = "".join(head.pieces)[:half], "".join(reversed(tail.pieces))[-half:]
    return f"{first}\n... [{left_out}] ...\n{last}"


class _End:
    """The first `limit` characters of a repr in pieces; with `backward`, the last ones, last first.

    A piece may exceed the limit.
    """

    def __init__(self, limit: int, backward: bool) -> None:
        self.pieces: list[str] = []
        self._limit = self._remaining = limit
        self._backward = backward
        self._path: set[int] = set()

    def write(self, value: Any) -> None:
        """Add the repr of `value` up to the limit."""
        cls = id(type(value))
        if cls in _TEXTS:
            self._add(_repr(value[-self._limit :] if self._backward else value[: self._limit]))
        elif cls not in _OPEN or not value:
            self._add(_repr(value))
        elif id(value) in self._path or len(self._path) >= _DEPTH:
            self._add(f"{_OPEN[cls]}...{_CLOSE[cls]}")
        else:
            self._path.add(id(value))
            ends = _OPEN[cls], ",)" if cls == id(tuple) and len(value) == 1 else _CLOSE[cls]
            self._add(ends[self._backward])
            self._write_items(value)
            self._add(ends[not self._backward])
            self._path.discard(id(value))

    def _write_items(self, value: Any) -> None:
        mapping = type(value) is dict
        items = value.items() if mapping else value
        if self._backward and id(type(value)) in _ORDERED:
            items = reversed(items)
        for number, item in enumerate(items):
            if self._remaining <= 0:
                return
            if number:
                self._add(", ")
            if mapping:
                self.write(item[self._backward])
                self._add(": ")
                self.write(item[not self._backward])
            else:
                self.write(item)

    def _add(self, text: str) -> None:
        self.pieces.append(text)
        self._remaining -= len(text)
