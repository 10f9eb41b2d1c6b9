"""`Half`: a context of which not all bytes have come yet, counted as they come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TypeAlias

from .arriving import Arriving, Content
from .owners import Owner
from .refusal import Refusal
from .room import Room

# Counted for each upload, however small: what is known of it, and a limit on how many there are.
LEAST_BYTES = 1 << 16

# Seconds that may pass between two bytes of a sender that others wait for; and how long they do,
# which a client must not take for silence.
_NEXT_S = 0.5
_OTHERS_S = 10.0

Body: TypeAlias = AsyncIterator[bytes]
Clock: TypeAlias = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes `first` to `last` of `total`, as Content-Range has them."""

    first: int
    last: int
    total: int

    @property
    def size(self) -> int:
        """How many bytes it has."""
        return self.last - self.first + 1


class Half:
    """Bytes of `owner` that come in, at most `limit`; `total` of them, if that is said.

    Its methods raise Refusal: TOO_LARGE; QUOTA_EXCEEDED or NO_ROOM; VALIDATION_ERROR if what came
    is not what was announced; UNKNOWN_CONTEXT if it was forgotten meanwhile.
    """

    def __init__(
        self, owner: Owner, total: int | None, *, limit: int, room: Room, clock: Clock
    ) -> None:
        self.total = total
        self._limit = limit
        self._room = room
        self._clock = clock
        self._arriving = Arriving()
        self._gone = False
        self.at = clock()  # the last byte came
        self.turn = asyncio.Lock()  # one body at a time
        self._ended = asyncio.Event()
        if total is not None and total > limit:
            raise self._too_large()
        room.check(owner, max(total or 0, LEAST_BYTES))
        self.holding = room.hold(owner, self)
        try:
            room.take(self.holding, LEAST_BYTES)
        except Refusal:
            self.forget()
            raise

    @property
    def busy(self) -> bool:
        """Whether a body is coming in."""
        return self.turn.locked()

    @property
    def gone(self) -> bool:
        """Whether it was forgotten, or is whole."""
        return self._gone

    @property
    def received(self) -> int:
        """How many bytes have come."""
        return self._arriving.received

    async def settled(self) -> None:
        """Wait while bytes come in: until it is whole or forgotten, or the next is overdue."""
        began = self._clock()
        while not self._gone:
            now = self._clock()
            pause = min(_OTHERS_S - (now - began), _NEXT_S - (now - self.at))
            if pause <= 0:
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._ended.wait()

    async def take(self, data: bytes) -> None:
        """Take `data`, which is next."""
        self._check_there()
        self.at = self._clock()
        if self.received + len(data) > self._limit:
            raise self._too_large()
        self._count(len(data))
        with self._memory():
            await self._arriving.add(data)
        self._check_there()

    async def take_piece(self, piece: Piece, body: Body) -> None:
        """Take `body`, which is `piece`. What came of it stays if its sender goes away."""
        with self._memory():
            mark = await self._arriving.mark()
        try:
            async for data in body:
                if self.received + len(data) > piece.last + 1:
                    raise wrong(f"more came than the {piece.size} bytes of Content-Range")
                await self.take(data)
            if self.received != piece.last + 1:
                raise wrong(f"fewer bytes came than the {piece.size} of Content-Range")
        except Refusal as refusal:
            if refusal.code == "VALIDATION_ERROR":
                with self._memory():
                    await self._arriving.back(mark)
                if not self._gone:
                    self._count(0)
            raise

    async def finish(self, sha256: str) -> Content:
        """All of it, whose hash must be `sha256`. Whose the holding is now, is the caller's."""
        with self._memory():
            found, content = await self._arriving.finish()
        try:
            self._check_there()
            if found != sha256:
                raise wrong("the bytes do not have this hash")
        except Refusal:
            content.close()
            raise
        self._gone = True
        self._ended.set()
        return content

    def forget(self) -> None:
        """Drop what came. May be called twice, and amid a body, which is then refused."""
        if not self._gone:
            self._gone = True
            self._ended.set()
            self._arriving.close()
            self._room.give_back(self.holding)

    @contextmanager
    def _memory(self) -> Iterator[None]:
        """Where it shows that there is none for this, or was none for what came before."""
        try:
            yield
        except OSError as error:
            self.forget()
            told = f"There is no memory for this context: {error.strerror}"
            raise Refusal("NO_ROOM", told) from error

    def _count(self, coming: int) -> None:
        more = max(self.received + coming, LEAST_BYTES) - self.holding.bytes
        if more > 0:
            self._room.take(self.holding, more)
        else:
            self._room.give_back(self.holding, -more)

    def _check_there(self) -> None:
        if self._gone:
            raise Refusal("UNKNOWN_CONTEXT", "The context was deleted while it came in.")

    def _too_large(self) -> Refusal:
        return Refusal("TOO_LARGE", f"The limit is {self._limit} bytes.", limit=self._limit)


def wrong(problem: str) -> Refusal:
    """The refusal of a request that is not what it says."""
    return Refusal("VALIDATION_ERROR", problem)
