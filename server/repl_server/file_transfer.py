"""Bodies of files: downloads that browsers save and never show, and uploads to a workspace."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterable, Iterator, Mapping
from contextlib import AbstractContextManager, aclosing, contextmanager, nullcontext, suppress
from typing import NamedTuple
from urllib.parse import quote

from fastapi import Request as HTTPRequest
from fastapi import Response
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from repl_sandbox.session.files import WorkspaceFile

from .protocol import file_error
from .routing import IMPLIED_HEAD, note_error, run_until_disconnect
from .tenants import RequestError, Tenant
from .uploads import Spool, UploadQuota

# Responses that browsers save and never show: a file of a workspace, a range of it, an archive.

_CHUNK = 1 << 19
_RANGE = re.compile(r"bytes=([0-9]{0,15})-([0-9]{0,15})")
# A file of a session must not act as a page of the server, whatever a browser makes of it.
_NOT_SHOWN = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "sandbox; default-src 'none'",
}


class Span(NamedTuple):
    """The bytes of a file from `first` on, before `end`."""

    first: int
    end: int


class Download(Response):
    """Sends `chunks`. After an error the response stays incomplete, which the client notices."""

    def __init__(
        self,
        chunks: AsyncGenerator[bytes, None],
        name: str,
        *,
        media_type: str = "application/octet-stream",
        status_code: int = 200,
        headers: Mapping[str, str] | None = None,
        resource: AbstractContextManager[object] | None = None,
    ) -> None:
        """`resource` is closed after the response, also if that never starts."""
        shown = {**_NOT_SHOWN, "Content-Disposition": _attachment(name), **(headers or {})}
        super().__init__(None, status_code, shown, media_type=media_type)
        if headers is None or "Content-Length" not in headers:
            del self.headers["content-length"]
        self._chunks = chunks
        self._resource = resource or nullcontext()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response."""
        request = HTTPRequest(scope, receive)
        with self._resource, suppress(ClientDisconnect):
            async with aclosing(self._chunks):
                await run_until_disconnect(request, self._send(request, send))

    async def _send(self, request: HTTPRequest, send: Send) -> None:
        start = {"type": "http.response.start", "status": self.status_code}
        await send({**start, "headers": self.raw_headers})
        if IMPLIED_HEAD not in request.scope:
            try:
                async for chunk in self._chunks:
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
            except (OSError, RequestError) as error:
                note_error(request, error if isinstance(error, RequestError) else file_error(error))
                return
        await send({"type": "http.response.body", "body": b""})


def file_download(request: HTTPRequest, file: WorkspaceFile) -> Download:
    """The response for a file, or for the range that the request asks for; closes `file`.

    Raises:
        RequestError: BAD_RANGE; the file is closed.
    """
    tag = f'"{file.version}"'
    try:
        span = _span(request, tag, file.size)
    except RequestError:
        file.close()
        raise
    headers = {"Accept-Ranges": "bytes", "ETag": tag}
    if span is not None:
        headers["Content-Range"] = f"bytes {span.first}-{span.end - 1}/{file.size}"
    first, end = span or (0, file.size)
    headers["Content-Length"] = str(end - first)
    return Download(
        _chunks(file, first, end),
        file.path.rpartition("/")[2],
        status_code=200 if span is None else 206,
        headers=headers,
        resource=file,
    )


async def _chunks(file: WorkspaceFile, first: int, end: int) -> AsyncGenerator[bytes, None]:
    for offset in range(first, end, _CHUNK):
        yield await asyncio.to_thread(file.read, offset, min(_CHUNK, end - offset))


def _span(request: HTTPRequest, tag: str, size: int) -> Span | None:
    """The range that a request asks for; None for all of the file.

    Several ranges, and a range of another version of the file, are answered with all of it.
    """
    found = _RANGE.fullmatch(request.headers.get("range", ""))
    if found is None or request.headers.get("if-range", tag) != tag:
        return None
    first, last = found.groups()
    if first:
        span = Span(int(first), min(int(last) + 1, size) if last else size)
    elif last:
        span = Span(max(0, size - int(last)), size)
    else:
        return None
    if first and last and int(last) < int(first):
        return None  # no valid range
    if span.first >= span.end:
        raise RequestError("BAD_RANGE", f"the file has {size:,} bytes", size=size)
    return span


def _attachment(name: str) -> str:
    """The header that names a download, of a name that may hold anything."""
    visible = "".join(c if c.isprintable() else "_" for c in name) or "download"
    return f"attachment; filename=\"download\"; filename*=UTF-8''{quote(visible, safe='')}"


# `FileUpload`: the body of an upload to a workspace, in memory until the session takes it.


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
