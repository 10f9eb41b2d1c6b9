"""`UploadStore`: complete and partial uploads of all tenants, by their SHA-256.

A tenant sees only its own uploads, and cannot find out whether another tenant has one. One request
at a time adds bytes to an upload, from the first missing byte on. Received bytes stay when a
request breaks off. The hash of a complete upload is checked before any use.
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

# Minimum that each upload counts: its bookkeeping, and a bound on the number of uploads.
LEAST_BYTES = 1 << 16
# Seconds that a partial upload is kept after its last byte, unless it is evicted earlier.
UNFINISHED_S = 300.0
# Seconds without a byte after which another request may take over an upload: the first client may
# have gone without notice, and be the one that comes back.
SENDING_S = 0.5
# Seconds that other requests for the upload wait in the meantime, short enough for clients' own
# time-outs; and seconds between two checks.
_WAIT_S = 10.0
_LOOK_S = 0.05

_HASH = re.compile(r"[0-9a-f]{64}")


class UploadStore:
    """The uploads of all tenants, accounted in `quota`."""

    def __init__(
        self, settings: Settings, quota: UploadQuota, clock: Clock = time.monotonic
    ) -> None:
        self.quota = quota
        self._limit = settings.context_bytes
        self._clock = clock
        self._uploads: dict[Key, PartialUpload] = {}

    def get(self, tenant: Tenant, sha256: str) -> PartialUpload:
        """The complete upload with this hash; marks it as used.

        Raises:
            RequestError: UNKNOWN_CONTEXT.
        """
        found = self.find(tenant, sha256)
        if found is None or not found.complete:
            raise unknown_upload_error(sha256)
        self.quota.touch(found.reservation)
        return found

    def find(self, tenant: Tenant, sha256: str) -> PartialUpload | None:
        """The complete or partial upload with this hash; does not mark it as used."""
        return self._uploads.get((tenant, sha256))

    async def put(
        self,
        tenant: Tenant,
        sha256: str,
        byte_range: ByteRange | None,
        length: int | None,
        body: AsyncIterator[bytes],
    ) -> UploadStatus:
        """Receive a body: `byte_range` of an upload, or all of it. `length`: of the body, if known.

        Many clients that begin with one context send it at once: while one of them sends, the
        others wait for the result. A body without a range starts the upload anew.

        Raises:
            RequestError: VALIDATION_ERROR, TOO_LARGE, QUOTA_EXCEEDED, NO_ROOM; OUT_OF_ORDER, with
                the byte to continue at; UNKNOWN_CONTEXT, the upload was deleted meanwhile.
            Exception: any error of `body`; received bytes stay.
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
        """Drop the upload, even while it is being sent; False if there is none."""
        found = self.find(tenant, sha256)
        if found is not None:
            found.evict()
        return found is not None

    def drop(self, upload: PartialUpload) -> None:
        """Drop `upload`, but not a later upload with the same hash. Idempotent."""
        if self._uploads.get(upload.key) is upload:
            del self._uploads[upload.key]
        if not upload.gone:
            upload.gone = True
            upload.content.close()
            self.quota.shrink(upload.reservation)

    def sweep(self) -> None:
        """Drop abandoned partial uploads."""
        now = self._clock()
        for each in list(self._uploads.values()):
            if not each.complete and not each.busy and now - each.at > UNFINISHED_S:
                each.evict()

    def close(self) -> None:
        """Drop all uploads."""
        for each in list(self._uploads.values()):
            each.evict()

    @contextmanager
    def hold(self, tenant: Tenant, uploads: Collection[PartialUpload]) -> Iterator[None]:
        """Inside the block, count `uploads` twice and evict none of them."""
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
            raise invalid_upload_request("a SHA-256 must be 64 lower-case hexadecimal digits")
        if byte_range is not None and length is not None and length != byte_range.size:
            raise invalid_upload_request(
                f"Content-Length is {length}, but Content-Range has {byte_range.size} bytes"
            )
        total = length if byte_range is None else byte_range.total
        if total is not None and total > self._limit:
            self._too_large()

    async def _settled(self, key: Key, byte_range: ByteRange | None) -> PartialUpload | None:
        """Wait until no other request sends this upload; returns the upload.

        Raises:
            RequestError: OUT_OF_ORDER, another request still sends.
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
        """Create an upload, in place of a partial one.

        Raises:
            RequestError: QUOTA_EXCEEDED or NO_ROOM, before any byte is read.
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
        """Append `body`, up to the byte `end` of the upload if that is known."""
        upload.writer = writer = object()
        try:
            while upload.size != end:
                data = await anext(body, None)
                if upload.gone:
                    raise RequestError("UNKNOWN_CONTEXT", "the upload was deleted while it arrived")
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
            raise invalid_upload_request("the body has more bytes than announced")
        if size > self._limit:
            upload.evict()
            self._too_large()
        self.quota.grow(upload.reservation, max(0, size - upload.reservation.bytes))
        upload.at = self._clock()
        try:
            upload.content.append(data)
        except OSError as error:
            upload.evict()
            message = f"no memory for this context: {error.strerror}"
            raise RequestError("NO_ROOM", message) from error

    def _finish(self, upload: PartialUpload) -> UploadStatus:
        if upload.content.sha256 != upload.key[1]:
            upload.evict()
            raise invalid_upload_request("the received bytes have another hash")
        upload.complete = True
        self.quota.touch(upload.reservation)
        return UploadStatus("made", upload.size)

    def _too_large(self) -> NoReturn:
        raise RequestError("TOO_LARGE", f"the limit is {self._limit} bytes", limit=self._limit)


class _UploadReader:
    """A reader of uploads, which are not evicted while it reads."""

    busy = True

    def evict(self) -> None:
        raise AssertionError("a busy holder is not evicted")
