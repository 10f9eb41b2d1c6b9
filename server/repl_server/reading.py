"""`Reading`: JSON of strangers, read on the event loop without others having to wait for long.

Whoever parses holds the interpreter. A text of 16 MB that is nothing but empty arrays takes a
second, and would stop every session; so there is a limit to the values in a text, large texts are
read one at a time, owners in turn, and after each there is a pause in which others are served.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar
from weakref import WeakValueDictionary

from .owners import Owner
from .refusal import Refusal

T = TypeVar("T")
Text = TypeVar("Text", str, bytes)

# Bytes or characters; what is shorter is read at once, in a few milliseconds whatever it is.
LARGE = 1 << 16
# Values in one text: some 50 ms. Uploads, which other processes read, have no such limit.
MOST_VALUES = 1 << 18
# Of the loop's time, large texts get one part in so many.
_PARTS = 4


class Reading:
    """Where the large texts of one server are read, one after another."""

    def __init__(self) -> None:
        self._one = asyncio.Lock()
        # Of an owner's texts one stands in line, so that many of them keep nobody waiting for all.
        self._of_owner: WeakValueDictionary[Owner, asyncio.Lock] = WeakValueDictionary()

    async def read(self, text: Text, read: Callable[[Text], T], owner: Owner) -> T:
        """`read(text)`, which `owner` has sent.

        Raises:
            Refusal: TOO_LARGE, there are too many values in it; and what `read` raises.
        """
        if len(text) < LARGE:
            return read(text)
        own = self._of_owner.setdefault(owner, asyncio.Lock())
        async with own, self._one:
            began = time.perf_counter()
            try:
                check_values(text)
                return read(text)
            finally:
                await asyncio.sleep((_PARTS - 1) * (time.perf_counter() - began))


def check_values(text: str | bytes) -> None:
    """Raises Refusal TOO_LARGE if there are more values in a JSON text than may be."""
    if _marks(text, ",[{") > MOST_VALUES and values(text) > MOST_VALUES:
        raise Refusal(
            "TOO_LARGE",
            f"more than {MOST_VALUES} values in one message; upload what is large",
            limit=MOST_VALUES,
        )


def values(text: str | bytes) -> int:
    """About how many values a JSON text has. What stands within strings does not count."""
    bare = text
    if _marks(bare, "\\"):
        # Escaped quotes end no string. Escaped backslashes first: they escape none.
        bare = _without(_without(bare, "\\\\"), '\\"')
    quotes = _marks(bare, '"')
    if quotes > 2 * MOST_VALUES:
        return quotes // 2
    if isinstance(bare, str):
        outside = "".join(bare.split('"')[::2])
        return _marks(outside, ",[{")
    return _marks(b"".join(bare.split(b'"')[::2]), ",[{")


def _marks(text: str | bytes, marks: str) -> int:
    if isinstance(text, str):
        return sum(text.count(mark) for mark in marks)
    return sum(text.count(mark.encode()) for mark in marks)


def _without(text: str | bytes, part: str) -> str | bytes:
    return text.replace(part, "") if isinstance(text, str) else text.replace(part.encode(), b"")
