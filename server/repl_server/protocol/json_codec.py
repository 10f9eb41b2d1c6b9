"""`JSONCodec`: large JSON, read and written on the event loop so that others need not wait for
long.

Whoever parses holds the interpreter, in a thread too, and so does whoever writes. A text of 16 MB
that is nothing but empty arrays takes a second, and would stop every session; so there is a limit
to the values in a text, large texts are looked at piece by piece and read one at a time, tenants in
turn, and after each piece and each text there is a pause in which others are served. Replies have
such pauses too.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import TypeVar
from weakref import WeakValueDictionary

from ..tenants.tenant import Tenant
from .request_error import RequestError

T = TypeVar("T")
Text = TypeVar("Text", str, bytes)

# Bytes or characters; what is shorter is read at once, in a few milliseconds whatever it is.
LARGE = 1 << 16
# Values in one text: some 50 ms. Uploads, which other processes read, have no such limit.
MOST_VALUES = 1 << 18
# Characters that are looked at without a pause: a few milliseconds, whatever they are.
_PIECE = 1 << 18
# Of the loop's time, large texts get one part in so many.
_PARTS = 4
# Each value but the first stands behind one of these, or behind a key and a colon.
_MARKS = (b",", b"[", b"{")


class JSONCodec:
    """Where the large texts of one server are read, one after another."""

    def __init__(self) -> None:
        self._one = asyncio.Lock()
        # Of a tenant's texts one stands in line, so that many of them keep nobody waiting for all.
        self._by_tenant: WeakValueDictionary[Tenant, asyncio.Lock] = WeakValueDictionary()

    async def read(self, text: Text, read: Callable[[Text], T], tenant: Tenant) -> T:
        """`read(text)`, which `tenant` has sent.

        Raises:
            Refusal: TOO_LARGE, there are too many values in it; and what `read` raises.
        """
        if len(text) < LARGE:
            return read(text)
        own = self._by_tenant.setdefault(tenant, asyncio.Lock())
        async with own, self._one:
            checking, more = checked_values(text), True
            while more:
                async with _turn():
                    more = next(checking, None) is not None
            async with _turn():
                return read(text)

    async def written(self, pieces: Iterator[str]) -> str:
        """The last of `pieces`, which are made one after another; those before it are large."""
        text = next(pieces)
        if len(text) < LARGE:
            return text
        await asyncio.sleep(0)  # how large it is, only its pieces say
        more: str | None = text
        async with self._one:
            while more is not None:
                text = more
                async with _turn():
                    more = next(pieces, None)
        return text


@asynccontextmanager
async def _turn() -> AsyncIterator[None]:
    """Some work, and the pause that it owes to the others."""
    began = time.perf_counter()
    try:
        yield
    finally:
        await asyncio.sleep((_PARTS - 1) * (time.perf_counter() - began))


def checked_values(text: str | bytes) -> Iterator[int]:
    """Look for too many values in a JSON text; each piece yields how many there may have been.

    Raises:
        Refusal: TOO_LARGE.
    """
    most = 0
    for piece in _pieces(text):
        most += _marks(piece)
        yield most
    if most <= MOST_VALUES:
        return
    for count in values(text):
        if count > MOST_VALUES:
            raise RequestError(
                "TOO_LARGE",
                f"more than {MOST_VALUES} values in one message; upload what is large",
                limit=MOST_VALUES,
            )
        yield count


def values(text: str | bytes) -> Iterator[int]:
    """About how many values a JSON text has, piece by piece. What is within strings is none."""
    count, within = 0, False
    for piece in _pieces(text):
        # Escaped quotes end no string. Escaped backslashes first: they escape none.
        parts = piece.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        count += _marks(b"".join(parts[within::2]))
        within ^= len(parts) % 2 == 0
        yield count


def _pieces(text: str | bytes) -> Iterator[bytes]:
    """The text in pieces, which cut no escape in two."""
    start = 0
    while start < len(text):
        piece = text[start : start + _PIECE]
        encoded = piece.encode(errors="surrogatepass") if isinstance(piece, str) else piece
        backslashes = len(encoded) - len(encoded.rstrip(b"\\"))
        cut = backslashes % 2 if len(piece) > 1 else 0
        yield encoded[: len(encoded) - cut]
        start += len(piece) - cut


def _marks(text: bytes) -> int:
    return sum(text.count(mark) for mark in _MARKS)
