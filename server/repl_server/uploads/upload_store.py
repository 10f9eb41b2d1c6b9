"""`UploadStore`: contexts that tenants have sent, by their SHA-256, whole or as far as they have come.

A tenant sees its own uploads and nothing of others', not even whether they are there. One request
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
    invalid_upload_request,
    out_of_order_error,
    unknown_upload_error,
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
    """The uploads of all tenants, counted in `quota`."""

    def __init__(
        self, settings: Settings, quota: UploadQuota, clock: Clock = time.monotonic
    ) -> None:
        self.quota = quota
        self._limit = settings.context_bytes
        self._clock = clock
        self._uploads: dict[Key, PartialUpload] = {}

    def get(self, tenant: Tenant, sha256: str) -> PartialUpload:
        """The whole upload, which is used now.

        Raises:
            Refusal: UNKNOWN_CONTEXT.
        """
        found = self.find(tenant, sha256)
        if found is None or not found.complete:
            raise unknown_upload_error(sha256)
        self.quota.touch(found.reservation)
        return found

    def find(self, tenant: Tenant, sha256: str) -> PartialUpload | None:
        """The upload, whole or not; nothing is said of whether it is used."""
        return self._uploads.get((tenant, sha256))

    async def put(
        self,
        tenant: Tenant,
        sha256: str,
        byte_range: ByteRange | None,
        length: int | None,
        body: AsyncIterator[bytes],
    ) -> UploadStatus:
        """Take a body of `length` bytes, or of as many as come: `byte_range` of an upload, or all of it.

        Many clients that begin with one context send it at once: while the bytes of one come in,
        others wait to be described that it is there. A body that is all of an upload begins it again.

        Raises:
            Refusal: VALIDATION_ERROR, TOO_LARGE, QUOTA_EXCEEDED, NO_ROOM; OUT_OF_ORDER, with the
                byte to continue at; UNKNOWN_CONTEXT if the upload was deleted meanwhile.
            Exception: what `body` raises; the bytes that came before stay.
        """
        self._check(sha256, byte_range, length)
        found = await self._settled((tenant, sha256), byte_range)
        if found is not None and found.complete:
            self.quota.touch(found.reservation)
            return UploadStatus("there", found.size)
        received = 0 if found is None else found.size
        if byte_range is not None and byte_range.first != received:
            raise out_of_order_error(received)
        if found is None or byte_range is None:
            found = self._begin(
                (tenant, sha256), length if byte_range is None else byte_range.total
            )
        elif found.total not in (None, byte_range.total):
            raise invalid_upload_request(
                f"the context has {found.total} bytes, not {byte_range.total}"
            )
        else:
            found.total = byte_range.total
        end = found.total if byte_range is None else byte_range.last + 1
        return await self._receive(found, end, body)

    def delete(self, tenant: Tenant, sha256: str) -> bool:
        """Forget the upload, also one that is being sent; whether there was anything."""
        found = self.find(tenant, sha256)
        if found is not None:
            found.evict()
        return found is not None

    def drop(self, upload: PartialUpload) -> None:
        """Forget this one, and nothing that came after it. May be called twice."""
        if self._uploads.get(upload.key) is upload:
            del self._uploads[upload.key]
        if not upload.gone:
            upload.gone = True
            upload.content.close()
            self.quota.shrink(upload.reservation)

    def sweep(self) -> None:
        """Forget unfinished uploads that nobody continues."""
        now = self._clock()
        for each in list(self._uploads.values()):
            if not each.complete and not each.busy and now - each.at > UNFINISHED_S:
                each.evict()

    def close(self) -> None:
        """Forget everything."""
        for each in list(self._uploads.values()):
            each.evict()

    @contextmanager
    def hold(self, tenant: Tenant, uploads: Collection[PartialUpload]) -> Iterator[None]:
        """Inside the `with` block, count `uploads` twice, and give up none of them."""
        reader = _UploadReader()
        reservation = self.quota.reserve(tenant, reader)
        for each in uploads:
            each.users.add(reader)
        try:
            self.quota.grow(reservation, sum(each.size for each in uploads))
            yield
        finally:
            for each in uploads:
                each.users.discard(reader)
            self.quota.shrink(reservation)

    def _check(self, sha256: str, byte_range: ByteRange | None, length: int | None) -> None:
        if _HASH.fullmatch(sha256) is None:
            raise invalid_upload_request("a SHA-256 is 64 hexadecimal digits in lower case")
        if byte_range is not None and length is not None and length != byte_range.size:
            raise invalid_upload_request(
                f"Content-Length is {length}, and Content-Range has {byte_range.size} bytes"
            )
        total = length if byte_range is None else byte_range.total
        if total is not None and total > self._limit:
            self._too_large()

    async def _settled(self, key: Key, byte_range: ByteRange | None) -> PartialUpload | None:
        """The upload that is there once nobody else sends it.

        Raises:
            Refusal: OUT_OF_ORDER: somebody else still does.
        """
        until = self._clock() + _WAIT_S
        while (found := self._uploads.get(key)) is not None and not found.complete:
            next_one = (
                byte_range is not None and byte_range.first == found.size and found.writer is None
            )
            now = self._clock()
            if next_one or now - found.at >= SENDING_S:
                break
            if now >= until:
                raise out_of_order_error(found.size)
            await asyncio.sleep(_LOOK_S)
        return found

    def _begin(self, key: Key, total: int | None) -> PartialUpload:
        """A new upload, in place of an unfinished one.

        Raises:
            Refusal: QUOTA_EXCEEDED or NO_ROOM, before any byte is read.
        """
        if (before := self._uploads.get(key)) is not None:
            before.evict()
        self.quota.check(key[0], max(total or 0, LEAST_BYTES))
        upload = PartialUpload(self, key, total, self._clock())
        try:
            self.quota.grow(upload.reservation, LEAST_BYTES)
        except RequestError:
            upload.evict()
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
                    raise out_of_order_error(upload.size)
                if data is None:
                    break
                self._add(upload, data, end)
            if upload.size == upload.total or (end is None and data is None):
                return self._finish(upload)
            return UploadStatus("more", upload.size)
        finally:
            if upload.writer is writer:
                upload.writer = None
            if not upload.size and not upload.complete:
                upload.evict()

    def _add(self, upload: PartialUpload, data: bytes, end: int | None) -> None:
        size = upload.size + len(data)
        if end is not None and size > end:
            raise invalid_upload_request("more bytes came than were announced")
        if size > self._limit:
            upload.evict()
            self._too_large()
        self.quota.grow(upload.reservation, max(0, size - upload.reservation.bytes))
        upload.at = self._clock()
        try:
            upload.content.append(data)
        except OSError as error:
            upload.evict()
            described = f"There is no memory for this context: {error.strerror}"
            raise RequestError("NO_ROOM", described) from error

    def _finish(self, upload: PartialUpload) -> UploadStatus:
        if upload.content.sha256 != upload.key[1]:
            upload.evict()
            raise invalid_upload_request("the bytes do not have this hash")
        upload.complete = True
        self.quota.touch(upload.reservation)
        return UploadStatus("made", upload.size)

    def _too_large(self) -> NoReturn:
        raise RequestError("TOO_LARGE", f"The limit is {self._limit} bytes.", limit=self._limit)


class _UploadReader:
    """Reads uploads, which are therefore not given up."""

    busy = True

    def evict(self) -> None:
        raise AssertionError("a busy holder is not given up")
