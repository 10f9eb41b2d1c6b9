"""The value of a cell's last expression as text, the way a REPL displays it, but bounded.

A value whose repr is short is shown by its own repr. A huge one is cut before it is turned into
text, so that displaying it takes neither the time nor the memory of its whole repr. The `__repr__`
of a class of the user's runs as in any REPL, inside the cell and on its clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain, islice
from typing import Any

from .anatomy import type_name
from .preview import preview, shallow_size

__all__ = ["DISPLAY_LIMIT", "cut", "display", "encodable", "preview", "shallow_size", "type_name"]

# Characters. A display is read, not processed, and no reader gets further; it also keeps a result
# well below the largest frame.
DISPLAY_LIMIT = 1 << 20

# What is supposed of an object whose repr cannot be told without asking for it. Only the number of
# objects that are looked at follows from it.
_OBJECT = 32
# Containers nested deeper than this are not followed to tell how long they are, nor beyond the
# second number when they are too long. Each level of the latter may be walked once more.
_DEPTH = 200
_CUT_DEPTH = 20

_repr = repr
_OPEN: dict[type, str] = {list: "[", tuple: "(", set: "{", frozenset: "frozenset({", dict: "{"}
_CLOSE: dict[type, str] = {list: "]", tuple: ")", set: "}", frozenset: "})", dict: "}"}
_SCALARS = frozenset({int, float, bool, complex, type(None)})


def display(value: object, limit: int = DISPLAY_LIMIT) -> str:
    """The repr of `value`, with its middle left out beyond `limit` characters.

    Raises:
        what the `__repr__` of a class of the user's raises.
    """
    if type(value) in _SCALARS:
        return _repr(value)
    if _fits(value, limit):
        return encodable(cut(_repr(value), limit))
    return encodable(_bounded(value, limit, _CUT_DEPTH))


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
    return _remaining(value, limit, []) > 0


def _remaining(value: Any, limit: int, path: list[int]) -> int:
    """What the repr of `value` leaves of `limit`; 0 or less as soon as it leaves nothing.

    `path` holds the identities of the containers around `value`.
    """
    cls = type(value)
    if cls is str or cls is bytes or cls is bytearray:
        return limit - len(value) - 2
    if cls in _SCALARS:
        return limit - 3
    if cls not in _OPEN:
        return limit - _OBJECT
    if id(value) in path:  # it contains itself, and its repr says `...`
        return limit - 5
    if len(value) * 3 > limit or len(path) >= _DEPTH:
        return 0
    path.append(id(value))
    items = chain(value, value.values()) if cls is dict else value
    for item in items:
        limit = _remaining(item, limit, path)
        if limit <= 0:
            break
    path.pop()
    return limit - 2


def _bounded(value: Any, limit: int, depth: int) -> str:
    """Like repr, but of the ends of what is too long, each cut before it is turned into text."""
    cls = type(value)
    if cls is str or cls is bytes or cls is bytearray:
        return _ends(value, limit)
    if cls not in _OPEN or _fits(value, limit):
        return cut(_repr(value), limit)
    if not depth:
        return f"{_OPEN[cls]}...{_CLOSE[cls]}"
    half = limit // 2
    head = _take(_pairs(value) if cls is dict else value, half, depth)
    tail = _tail(value, len(value) - len(head), half, depth)
    left = len(value) - len(head) - len(tail)
    middle = [f"\n... [{left:,} items left out] ...\n"] if left else []
    return _OPEN[cls] + ", ".join([*head, *middle, *tail]) + _CLOSE[cls]


def _ends(value: Any, limit: int) -> str:
    """The repr of both ends of a str or of bytes."""
    if len(value) <= limit:
        return cut(_repr(value), limit)
    half = limit // 2
    # A repr can be longer than its text, so each end is cut again.
    head = _repr(value[:half])[:half]
    tail = _repr(value[len(value) - half :])[-half:]
    kind = "characters" if type(value) is str else "bytes"
    return f"{head}\n... [about {len(value) - 2 * half:,} {kind} left out] ...\n{tail}"


class _Pair(tuple[Any, Any]):
    """A key of a dict and what it maps to."""

    __slots__ = ()


def _pairs(value: dict[Any, Any], last: bool = False) -> Iterable[_Pair]:
    return map(_Pair, reversed(value.items()) if last else value.items())


def _take(items: Iterable[Any], room: int, depth: int) -> list[str]:
    """The reprs of as many items as fit into `room`; the last of them may be cut."""
    taken: list[str] = []
    for item in items:
        if room <= 0:
            break
        if type(item) is _Pair:
            key = _bounded(item[0], room // 2, depth - 1)
            text = f"{key}: {_bounded(item[1], room - len(key), depth - 1)}"
        else:
            text = _bounded(item, room, depth - 1)
        taken.append(text)
        room -= len(text) + 2
    return taken


def _tail(value: Any, left: int, room: int, depth: int) -> list[str]:
    """Items from the end of a list, tuple or dict, at most `left`; a set has no end."""
    if type(value) is dict:
        return _take(islice(_pairs(value, last=True), left), room, depth)[::-1]
    if type(value) in (list, tuple):
        return _take(islice(reversed(value), left), room, depth)[::-1]
    return []
