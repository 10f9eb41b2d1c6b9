"""Raw arguments of a call: text and bytes that follow the call's JSON in the blob.

The JSON has null in place of each raw argument. A place is the position or the keyword of an
argument, so a raw argument is never nested deeper.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

# In one call, elements of lists included. A header has room for a row for each.
MAX_PARTS = 1 << 14
MAX_PLACE = 200  # characters of a keyword

_KINDS = ("str", "bytes")


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
        or row[0] not in _KINDS
        or type(row[1]) is not int
        or row[1] < 0
    ):
        raise TypeError("a part is not a kind and a size")
    size: int = row[1]
    return size
