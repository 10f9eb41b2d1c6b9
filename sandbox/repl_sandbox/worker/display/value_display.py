"""The value of a cell's last expression as text, the way a REPL displays it, but bounded.

A value whose repr is short is shown by its own repr. A huge one is cut before it is turned into
text, so that displaying it takes neither the time nor the memory of its whole repr. The `__repr__`
of a class of the user's runs as in any REPL, inside the cell and on its clock.
"""

from __future__ import annotations

from itertools import chain
from typing import Any

from ..namespace.safe_inspect import type_name
from .value_preview import preview, shallow_size

__all__ = ["DISPLAY_LIMIT", "cut", "display", "encodable", "preview", "shallow_size", "type_name"]

# Characters. A display is read, not processed, and no reader gets further; it also keeps a result
# well below the largest frame.
DISPLAY_LIMIT = 1 << 20

# What is supposed of an object whose repr cannot be told without asking for it. Only the number of
# objects that are looked at follows from it.
_OBJECT = 32
# Containers nested deeper than this are not followed: the walk is recursive, and so is the user's
# code around it.
_DEPTH = 200

_repr = repr


def _by_id(texts: dict[type, str]) -> dict[int, str]:
    return {id(cls): text for cls, text in texts.items()}


# By the identities of classes: a metaclass of the user's may have another `__eq__`, and no hash.
_OPEN = _by_id({list: "[", tuple: "(", set: "{", frozenset: "frozenset({", dict: "{"})
_CLOSE = _by_id({list: "]", tuple: ")", set: "}", frozenset: "})", dict: "}"})
_ORDERED = frozenset(map(id, (list, tuple, dict)))
_TEXTS = _by_id({str: "characters", bytes: "bytes", bytearray: "bytes"})
_SCALARS = frozenset(map(id, (int, float, bool, complex, type(None))))


def display(value: object, limit: int = DISPLAY_LIMIT) -> str:
    """The repr of `value`, with its middle left out beyond `limit` characters.

    Raises:
        what the `__repr__` of a class of the user's raises.
    """
    if id(type(value)) in _SCALARS:
        return _repr(value)
    if _fits(value, limit):
        return encodable(cut(_repr(value), limit))
    return encodable(_bounded(value, limit))


def cut(text: str, limit: int) -> str:
    """`text` with its middle left out beyond `limit` characters, and a line that says how much."""
    if len(text) <= limit:
        return text
    half = limit // 2
    head, tail = text[:half], text[len(text) - half :]
    return f"{head}\n... [{len(text) - 2 * half:,} characters left out] ...\n{tail}"


def encodable(text: str) -> str:
    """`text` with lone surrogates, which no encoding can carry, escaped as in a repr."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace").decode()
    return text


def _fits(value: Any, limit: int) -> bool:
    """Whether the repr of `value` is at most `limit` long, as far as built-in values go."""
    return _remaining(value, limit, set()) > 0


def _remaining(value: Any, limit: int, path: set[int]) -> int:
    """What the repr of `value` leaves of `limit`; 0 or less as soon as it leaves nothing.

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
    """Both ends of a repr that is too long, without the rest of it."""
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
    """The first `room` characters of a repr in pieces; with `backward` the last ones, last first.

    A piece may go beyond the room.
    """

    def __init__(self, room: int, backward: bool) -> None:
        self.pieces: list[str] = []
        self._room = self._left = room
        self._backward = backward
        self._path: set[int] = set()

    def write(self, value: Any) -> None:
        """Add the repr of `value`, as far as there is room."""
        cls = id(type(value))
        if cls in _TEXTS:
            self._add(_repr(value[-self._room :] if self._backward else value[: self._room]))
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
            if self._left <= 0:
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
        self._left -= len(text)
