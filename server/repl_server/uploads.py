"""`Uploads`: contexts that owners have sent, by their hashes.

An owner sees its own and nothing of others', not even whether they are there. Bytes are counted as
they come: who announces much and sends nothing takes no room from anybody.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

from .arriving import Content
from .half import Body, Clock, Half, Piece, wrong
from .owners import Owner
from .refusal import Refusal
from .room import Holding, Room
from .settings import Settings

_HASH = re.compile(r"[0-9a-f]{64}")

Key: TypeAlias = tuple[Owner, str]


class User(Protocol):
    """Something that is made of an upload."""

    @property
    def busy(self) -> bool:
        """Whether somebody uses it now."""


@dataclass(frozen=True, slots=True)
class Put:
    """What became of a request: "there" already, "made" by it, or "more" is to come."""

    kind: Literal["there", "made", "more"]
    received: int


# By identity: an upload that was forgotten and one that came after are not the same.
@dataclass(slots=True, eq=False)
class Upload:
    """A context that is whole, and whose hash is right."""

    key: Key
    content: Content
    holding: Holding
    uploads: Uploads
    users: set[User] = field(default_factory=set)

    @property
    def size(self) -> int:
        """Bytes."""
        return self.content.size

    @property
    def busy(self) -> bool:
        """Whether something that is made of it is used."""
        return any(each.busy for each in self.users)

    def forget(self) -> None:
        """Drop it. What is made of it stays."""
        self.uploads.drop(self)


class Uploads:
    """The contexts of all owners, in `room`."""

    def __init__(self, settings: Settings, room: Room, clock: Clock = time.monotonic) -> None:
        self._limit = settings.context_bytes
        # Who sends in pieces comes back at once, or has given up.
        self._patience = settings.body_s
        self._room = room
        self._clock = clock
        self._whole: dict[Key, Upload] = {}
        self._halves: dict[Key, Half] = {}  # of which pieces come
        self._unbroken: dict[Key, Half] = {}  # which come as a whole, the first of each

    def get(self, owner: Owner, sha256: str) -> Upload:
        """The upload, which is used now.

        Raises:
            Refusal: UNKNOWN_CONTEXT.
        """
        found = self._whole.get((owner, sha256))
        if found is None:
            raise self.unknown(sha256)
        self._room.touch(found.holding)
        return found

    @staticmethod
    def unknown(sha256: str) -> Refusal:
        """The refusal of what is not there."""
        return Refusal("UNKNOWN_CONTEXT", "There is no such upload.", sha256=sha256)

    def find(self, owner: Owner, sha256: str) -> Upload | None:
        """The upload, or None; nothing is said of whether it is used."""
        return self._whole.get((owner, sha256))

    def received(self, owner: Owner, sha256: str) -> int | None:
        """How many bytes have come of one that is not whole; None if nothing is known of it."""
        half = self._halves.get((owner, sha256))
        return None if half is None or half.gone else half.received

    async def put(
        self, owner: Owner, sha256: str, piece: Piece | None, length: int | None, body: Body
    ) -> Put:
        """Take a body of `length` bytes, or of as many as come: all of a context, or `piece` of it.

        What had come of a piece whose sender went away stays; of a body that is no piece nothing
        does. Many who begin with one context send it at once: while one's bytes come in, others
        wait to be told that it is there.

        Raises:
            Refusal: as `Half`; OUT_OF_ORDER, with where to go on.
            Exception: what `body` raises.
        """
        if _HASH.fullmatch(sha256) is None:
            raise wrong("a SHA-256 is 64 hexadecimal digits in lower case")
        key = owner, sha256
        if (found := self._whole.get(key)) is not None:
            return self._there(found)
        if piece is None:
            return await self._put_whole(key, length, body)
        if length is not None and length != piece.size:
            raise wrong(f"Content-Length is {length}, and Content-Range has {piece.size} bytes")
        return await self._put_piece(key, piece, body)

    def delete(self, owner: Owner, sha256: str) -> bool:
        """Forget the context and what had come of it; whether there was anything."""
        half, found = self._halves.pop((owner, sha256), None), self.find(owner, sha256)
        if half is not None:
            half.forget()
        if found is not None:
            found.forget()
        return half is not None or found is not None

    def drop(self, upload: Upload) -> None:
        """Forget this one, and nothing that came after it."""
        if self._whole.get(upload.key) is upload:
            del self._whole[upload.key]
            upload.content.close()
            self._room.give_back(upload.holding)

    def sweep(self) -> None:
        """Forget what nobody goes on with."""
        now = self._clock()
        for key, half in list(self._halves.items()):
            if half.gone or (not half.busy and now - half.at > self._patience):
                half.forget()
                del self._halves[key]

    def close(self) -> None:
        """Forget everything."""
        for half in self._halves.values():
            half.forget()
        self._halves.clear()
        for upload in list(self._whole.values()):
            upload.forget()

    async def _put_whole(self, key: Key, length: int | None, body: Body) -> Put:
        if (other := self._unbroken.get(key)) is not None:
            await other.settled()
            if (found := self._whole.get(key)) is not None:
                return self._there(found)
        half = self._begin(key, length)
        self._unbroken.setdefault(key, half)
        try:
            async with half.turn:
                async for data in body:
                    if (found := self._whole.get(key)) is not None:
                        return self._there(found)  # somebody else was faster
                    await half.take(data)
                if length is not None and half.received != length:
                    raise wrong(f"{half.received} bytes came of {length}")
                return await self._finish(key, half)
        finally:
            half.forget()
            if self._unbroken.get(key) is half:
                del self._unbroken[key]

    async def _put_piece(self, key: Key, piece: Piece, body: Body) -> Put:
        half = self._halves.get(key)
        if half is None or half.gone:
            if piece.first:
                raise _out_of_order(0)
            half = self._halves[key] = self._begin(key, piece.total)
        elif piece.first < half.received or half.busy:
            # Were they told by turns where to go on, each would send all of it.
            await half.settled()
        async with half.turn:
            if (found := self._whole.get(key)) is not None:
                return self._there(found)
            if half.gone:
                raise _out_of_order(0)
            if half.total != piece.total:
                raise wrong(f"the context has {half.total} bytes, not {piece.total}")
            if half.received < piece.total:  # else its sender went away after the last byte
                if half.received != piece.first:
                    raise _out_of_order(half.received)
                await half.take_piece(piece, body)
                if half.received < piece.total:
                    return Put("more", half.received)
            try:
                return await self._finish(key, half)
            finally:
                half.forget()
                if self._halves.get(key) is half:
                    del self._halves[key]

    def _begin(self, key: Key, total: int | None) -> Half:
        return Half(key[0], total, limit=self._limit, room=self._room, clock=self._clock)

    async def _finish(self, key: Key, half: Half) -> Put:
        content = await half.finish(key[1])
        if (found := self._whole.get(key)) is not None:
            content.close()
            self._room.give_back(half.holding)
            return self._there(found)
        upload = Upload(key, content, half.holding, self)
        half.holding.holder = self._whole[key] = upload
        self._room.touch(upload.holding)
        return Put("made", content.size)

    def _there(self, found: Upload) -> Put:
        self._room.touch(found.holding)
        return Put("there", found.size)


def _out_of_order(received: int) -> Refusal:
    return Refusal("OUT_OF_ORDER", f"Go on with byte {received}.", received=received)
