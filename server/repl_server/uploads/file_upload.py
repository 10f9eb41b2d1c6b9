"""`FileUpload`: the body of an upload to a workspace, in memory until the session takes it."""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterator
from contextlib import contextmanager

from ..protocol.request_error import RequestError
from ..tenants.tenant import Tenant
from .spool import Spool
from .upload_quota import UploadQuota


class FileUpload:
    """Bytes that count as uploads of `tenant` until the block ends. Not evicted: it is in use."""

    busy = True

    def __init__(self, quota: UploadQuota, tenant: Tenant) -> None:
        self._quota = quota
        self._reservation = quota.reserve(tenant, self)
        self.content = Spool()

    def evict(self) -> None:
        """As `MemoryHolder.evict`; not called while it is busy."""

    async def receive(self, body: AsyncIterable[bytes]) -> None:
        """Keep the bytes of `body`.

        Raises:
            RequestError: QUOTA_EXCEEDED, NO_ROOM, and the errors of `body`.
        """
        async for chunk in body:
            self._quota.grow(self._reservation, len(chunk))
            try:
                self.content.append(chunk)
            except OSError:
                raise RequestError("NO_ROOM", "no memory is free for this file") from None

    def close(self) -> None:
        """Release the memory."""
        self._quota.shrink(self._reservation)
        self.content.close()


@contextmanager
def file_upload(quota: UploadQuota, tenant: Tenant) -> Iterator[FileUpload]:
    """A `FileUpload` for the block."""
    upload = FileUpload(quota, tenant)
    try:
        yield upload
    finally:
        upload.close()
