"""`UploadStore`: contexts that owners have sent, by their SHA-256, whole or as far as they have
come.

An owner sees its own uploads and nothing of others', not even whether they are there. One request
at a time adds to an upload, from the byte on that is missing. Bytes that came stay when the request
breaks off, and the hash of all of them is checked before anything uses them.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import contextmanager
from typing import NoReturn

from ..protocol.request_error import RequestError
from ..quotas.token_bucket import Clock
from ..settings import Settings
from ..tenants.tenant import Tenant
from .partial_upload import (
    ByteRange,
    Key,
    PartialUpload,
    UploadStatus,
    out_of_order,
    unknown,
    wrong,
)
from .upload_quota import UploadQuota

# Counted for each upload, however small: what is known of it, and a limit on how many there are.
LEAST_BYTES = 1 << 16
# Seconds that an unfinished upload is kept after its last byte, unless its room is needed before.
UNFINISHED_S = 300.0
# Seconds after its last byte in which a request still counts as sending. A request whose client has
# gone unnoticed sends nothing more, and the client that comes back takes its place.
SENDING_S = 0.5
# Seconds that other requests wait meanwhile, which a client must not take for silence, and seconds
# between two looks.
_WAIT_S = 10.0
_LOOK_S = 0.05

_HASH = re.compile(r"[0-9a-f]{64}")


class UploadStore:
    """The uploads of all owners, counted in `quota`."""

    def __init__(
        self, settings: Settings, quota: UploadQuota, clock: Clock = time.monotonic
    ) -> None:
        self.quota = quota
        self._limit = settings.context_bytes
        self._clock = clock
        self._uploads: dict[Key, PartialUpload] = {}

    def get(self, owner: Tenant, sha256: str) -> PartialUpload:
        """The whole upload, which is used now.

        Raises:
            Refusal: UNKNOWN_CONTEXT.
        """
        found = self.find(owner, sha256)
        if found is None or not found.whole:
            raise unknown(sha256)
        self.quota.touch(found.holding)
        return found

    def find(self, owner: Tenant, sha256: str) -> PartialUpload | None:
        """The upload, whole or not; nothing is said of whether it is used."""
        return self._uploads.get((owner, sha256))

    async def put(
        self,
        owner: Tenant,
        sha256: str,
        piece: ByteRange | None,
        length: int | None,
        body: AsyncIterator[bytes],
    ) -> UploadStatus:
        """Take a body of `length` bytes, or of as many as come: `piece` of an upload, or all of it.

        Many clients that begin with one context send it at once: while the bytes of one come in,
        others wait to be told that it is there. A body that is all of an upload begins it again.

        Raises:
            Refusal: VALIDATION_ERROR, TOO_LARGE, QUOTA_EXCEEDED, NO_ROOM; OUT_OF_ORDER, with the
                byte to continue at; UNKNOWN_CONTEXT if the upload was deleted meanwhile.
            Exception: what `body` raises; the bytes that came before stay.
        """
        self._check(sha256, piece, length)
        found = await self._settled((owner, sha256), piece)
        if found is not None and found.whole:
            self.quota.touch(found.holding)
            return UploadStatus("there", found.size)
        received = 0 if found is None else found.size
        if piece is not None and piece.first != received:
            raise out_of_order(received)
        if found is None or piece is None:
            found = self._begin((owner, sha256), length if piece is None else piece.total)
        elif found.total not in (None, piece.total):
            raise wrong(f"the context has {found.total} bytes, not {piece.total}")
        else:
            found.total = piece.total
        end = found.total if piece is None else piece.last + 1
        return await self._receive(found, end, body)

    def delete(self, owner: Tenant, sha256: str) -> bool:
        """Forget the upload, also one that is being sent; whether there was anything."""
        found = self.find(owner, sha256)
        if found is not None:
            found.forget()
        return found is not None

    def drop(self, upload: PartialUpload) -> None:
        """Forget this one, and nothing that came after it. May be called twice."""
        if self._uploads.get(upload.key) is upload:
            del self._uploads[upload.key]
        if not upload.gone:
            upload.gone = True
            upload.content.close()
            self.quota.give_back(upload.holding)

    def sweep(self) -> None:
        """Forget unfinished uploads that nobody continues."""
        now = self._clock()
        for each in list(self._uploads.values()):
            if not each.whole and not each.busy and now - each.at > UNFINISHED_S:
                each.forget()

    def close(self) -> None:
        """Forget everything."""
        for each in list(self._uploads.values()):
            each.forget()

    @contextmanager
    def read(self, owner: Tenant, uploads: Collection[PartialUpload]) -> Iterator[None]:
        """Inside the `with` block, count `uploads` twice, and give up none of them."""
        reader = _UploadReader()
        holding = self.quota.hold(owner, reader)
        for each in uploads:
            each.users.add(reader)
        try:
            self.quota.take(holding, sum(each.size for each in uploads))
            yield
        finally:
            for each in uploads:
                each.users.discard(reader)
            self.quota.give_back(holding)

    def _check(self, sha256: str, piece: ByteRange | None, length: int | None) -> None:
        if _HASH.fullmatch(sha256) is None:
            raise wrong("a SHA-256 is 64 hexadecimal digits in lower case")
        if piece is not None and length is not None and length != piece.size:
            raise wrong(f"Content-Length is {length}, and Content-Range has {piece.size} bytes")
        total = length if piece is None else piece.total
        if total is not None and total > self._limit:
            self._too_large()

    async def _settled(self, key: Key, piece: ByteRange | None) -> PartialUpload | None:
        """The upload that is there once nobody else sends it.

        Raises:
            Refusal: OUT_OF_ORDER: somebody else still does.
        """
        until = self._clock() + _WAIT_S
        while (found := self._uploads.get(key)) is not None and not found.whole:
            next_one = piece is not None and piece.first == found.size and found.writer is None
            now = self._clock()
            if next_one or now - found.at >= SENDING_S:
                break
            if now >= until:
                raise out_of_order(found.size)
            await asyncio.sleep(_LOOK_S)
        return found

    def _begin(self, key: Key, total: int | None) -> PartialUpload:
        """A new upload, in place of an unfinished one.

        Raises:
            Refusal: QUOTA_EXCEEDED or NO_ROOM, before any byte is read.
        """
        if (before := self._uploads.get(key)) is not None:
            before.forget()
        self.quota.check(key[0], max(total or 0, LEAST_BYTES))
        upload = PartialUpload(self, key, total, self._clock())
        try:
            self.quota.take(upload.holding, LEAST_BYTES)
        except RequestError:
            upload.forget()
            raise
        self._uploads[key] = upload
        return upload

    async def _receive(
        self, upload: PartialUpload, end: int | None, body: AsyncIterator[bytes]
    ) -> UploadStatus:
        """Add `body`, up to the byte `end` of the upload if that is known."""
        upload.writer = writer = object()
        try:
            while upload.size != end:
                data = await anext(body, None)
                if upload.gone:
                    raise RequestError(
                        "UNKNOWN_CONTEXT", "The context was deleted while it came in."
                    )
                if upload.writer is not writer:
                    raise out_of_order(upload.size)
                if data is None:
                    break
                self._add(upload, data, end)
            if upload.size == upload.total or (end is None and data is None):
                return self._finish(upload)
            return UploadStatus("more", upload.size)
        finally:
            if upload.writer is writer:
                upload.writer = None
            if not upload.size and not upload.whole:
                upload.forget()

    def _add(self, upload: PartialUpload, data: bytes, end: int | None) -> None:
        size = upload.size + len(data)
        if end is not None and size > end:
            raise wrong("more bytes came than were announced")
        if size > self._limit:
            upload.forget()
            self._too_large()
        self.quota.take(upload.holding, max(0, size - upload.holding.bytes))
        upload.at = self._clock()
        try:
            upload.content.append(data)
        except OSError as error:
            upload.forget()
            told = f"There is no memory for this context: {error.strerror}"
            raise RequestError("NO_ROOM", told) from error

    def _finish(self, upload: PartialUpload) -> UploadStatus:
        if upload.content.sha256 != upload.key[1]:
            upload.forget()
            raise wrong("the bytes do not have this hash")
        upload.whole = True
        self.quota.touch(upload.holding)
        return UploadStatus("made", upload.size)

    def _too_large(self) -> NoReturn:
        raise RequestError("TOO_LARGE", f"The limit is {self._limit} bytes.", limit=self._limit)


class _UploadReader:
    """Reads uploads, which are therefore not given up."""

    busy = True

    def forget(self) -> None:
        raise AssertionError("a busy holder is not given up")
