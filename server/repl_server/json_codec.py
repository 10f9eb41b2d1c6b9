"""`JSONCodec`: large JSON texts, parsed and serialized without blocking the event loop for long.

Parsing and serializing hold the GIL, in other threads too: 16 MB of empty arrays take a second, in
which no session would be served. The number of values in one text is therefore bounded; large texts
are scanned in chunks and parsed one at a time, one per tenant at most; and the codec yields to the
event loop after each chunk, each text and each part of a large reply.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import TypeVar
from weakref import WeakValueDictionary

from .tenants import RequestError, Tenant

T = TypeVar("T")
Text = TypeVar("Text", str, bytes)

# Bytes or characters. Shorter texts are parsed at once: a few milliseconds, whatever they contain.
LARGE = 1 << 16
# Values in one text: about 50 ms. Uploads have no such limit: other processes parse them.
MOST_VALUES = 1 << 18
# Characters that are scanned without yielding: a few milliseconds, whatever they contain.
_PIECE = 1 << 18
# Large texts take at most one part in so many of the event loop's time.
_PARTS = 4
# One of these precedes each value but the first, unless a key and a colon do.
_MARKS = (b",", b"[", b"{")


class JSONCodec:
    """Parses the large texts of one server, one at a time."""

    def __init__(self) -> None:
        self._one = asyncio.Lock()
        # One text of a tenant competes for the lock: a tenant with many does not delay the others.
        self._by_tenant: WeakValueDictionary[Tenant, asyncio.Lock] = WeakValueDictionary()

    async def read(self, text: Text, read: Callable[[Text], T], tenant: Tenant) -> T:
        """Return `read(text)` for a text that `tenant` sent.

        Raises:
            RequestError: TOO_LARGE, the text has too many values; and any error of `read`.
        """
        if len(text) < LARGE:
            return read(text)
        async with self.alone(tenant):
            checking, more = checked_values(text), True
            while more:
                async with turn():
                    more = next(checking, None) is not None
            async with turn():
                return read(text)

    @asynccontextmanager
    async def alone(self, tenant: Tenant) -> AsyncIterator[None]:
        """Let `tenant` do long work, in pieces of one `turn` each, while no other tenant does."""
        own = self._by_tenant.setdefault(tenant, asyncio.Lock())
        async with own, self._one:
            yield

    async def written(self, pieces: Iterator[str]) -> str:
        """Return the last of `pieces`, yielding to the event loop in between if they are large."""
        text = next(pieces)
        if len(text) < LARGE:
            return text
        await asyncio.sleep(0)  # only the pieces show how large the text is
        more: str | None = text
        async with self._one:
            while more is not None:
                text = more
                async with turn():
                    more = next(pieces, None)
        return text


@asynccontextmanager
async def turn() -> AsyncIterator[None]:
    """Do a piece of work, then leave the event loop to others in proportion to its time."""
    began = time.perf_counter()
    try:
        yield
    finally:
        await asyncio.sleep((_PARTS - 1) * (time.perf_counter() - began))


def checked_values(text: str | bytes) -> Iterator[int]:
    """Scan a JSON text for too many values; yields an upper bound after each chunk.

    Raises:
        RequestError: TOO_LARGE.
    """
    upper_bound = 0
    for piece in _pieces(text):
        upper_bound += _marks(piece)
        yield upper_bound
    if upper_bound <= MOST_VALUES:
        return
    for count in count_values(text):
        if count > MOST_VALUES:
            raise RequestError(
                "TOO_LARGE",
                f"more than {MOST_VALUES} values in one message; upload large data instead",
                limit=MOST_VALUES,
            )
        yield count


def count_values(text: str | bytes) -> Iterator[int]:
    """Estimate the number of values in a JSON text, ignoring strings; yields after each chunk."""
    count, within = 0, False
    for piece in _pieces(text):
        # An escaped quote ends no string. Escaped backslashes go first: they escape nothing.
        parts = piece.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        count += _marks(b"".join(parts[within::2]))
        within ^= len(parts) % 2 == 0
        yield count


def _pieces(text: str | bytes) -> Iterator[bytes]:
    """Split the text into chunks that do not divide an escape sequence."""
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
