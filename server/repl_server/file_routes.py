"""`/files`, `/archive` and `/contexts`: files of a session, and uploads of contexts."""

# Annotations are not postponed: FastAPI evaluates them, and some models are created per server.

import asyncio
import json
import os
import re
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AbstractContextManager, aclosing, contextmanager, nullcontext, suppress
from typing import Annotated, Any, Literal, NamedTuple
from urllib.parse import parse_qsl, quote, unquote_to_bytes

from fastapi import APIRouter, Header, Path, Query, Response
from fastapi import Request as HTTPRequest
from pydantic import BaseModel
from starlette.convertors import PathConvertor, register_url_convertor
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from repl_sandbox.session.files import WorkspaceFile
from repl_sandbox.session.local_files import MemoryFile
from repl_sandbox.types import File

from .connections import LINGER_S
from .guard import announced
from .json_codec import turn
from .manager import SessionManager
from .protocol import file_error, file_errors
from .routes import SESSION, ErrorResponse
from .routing import IMPLIED_HEAD, error_response, note_error, run_until_disconnect
from .session import ServerSession, turn_of
from .tenants import RequestError, Tenant, tenant_of
from .uploads import ByteRange, Spool, UploadQuota, invalid_upload_request, unknown_upload_error

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


# `/contexts/{sha256}`: upload, look up and delete contexts over HTTP.
#
# Partial `PUT` follows RFC 9110 (14.5), with the `Upload-Offset` of the IETF's resumable uploads.

OFFSET = "Upload-Offset"

# Up to fifteen digits: a petabyte, and exact in every JSON parser.
_CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,15})-([0-9]{1,15})/([0-9]{1,15})")


class UploadedResponse(BaseModel):
    """A complete upload."""

    sha256: str
    bytes: int


class UploadProgressResponse(BaseModel):
    """A partial upload; the next range begins at byte `received`."""

    received: int


class UploadBody:
    """The body of an upload request, chunk by chunk."""

    def __init__(self, request: HTTPRequest) -> None:
        self._chunks = request.stream()
        # A client that expects `100 Continue` has sent nothing before the first read.
        self._begun = request.headers.get("expect", "").lower() != "100-continue"

    async def __aiter__(self) -> AsyncIterator[bytes]:
        self._begun = True
        async for chunk in self._chunks:
            yield chunk

    async def drain(self, seconds: float | None) -> bool:
        """Read and discard the rest, which a client sends before it reads; False after a time-out.

        Raises:
            ClientDisconnect: the client disconnected.
        """
        if not self._begun:
            return False
        try:
            async with asyncio.timeout(seconds):
                async for _ in self._chunks:
                    pass
        except TimeoutError:
            return False
        return True


_Hash = Annotated[str, Path(pattern="^[0-9a-f]{64}$", description="SHA-256 of the whole context.")]
_ContentRange = Annotated[
    str | None,
    Header(alias="Content-Range", description="`bytes first-last/total` of a byte_range."),
]
_JSON = "application/json"
_BODY = {"content": {"application/octet-stream": {"schema": {"type": "string"}}}}
_PUT = (400, 404, 408, 409, 413, 422, 429, 503, 507)


class UploadRoutes:
    """Handlers of the routes."""

    def __init__(self, manager: SessionManager) -> None:
        self._manager = manager

    async def put(
        self, request: HTTPRequest, sha256: _Hash, content_range: _ContentRange = None
    ) -> Response:
        """Upload a context, whole or in successive ranges."""
        body = UploadBody(request)
        try:
            answer = await self._store(request, sha256, body)
            whole = await body.drain(None)
        except ClientDisconnect:
            return Response(status_code=400)  # nobody reads it
        except RequestError as refusal:
            answer, whole = error_response(request, refusal), await body.drain(LINGER_S)
            if (received := refusal.details.get("received")) is not None:
                answer.headers[OFFSET] = str(received)
        if not whole:
            answer.headers["Connection"] = "close"
        return answer

    async def head(self, request: HTTPRequest, sha256: _Hash) -> Response:
        """Report whether a context is complete, or how many bytes of it have been received."""
        found = self._manager.uploads.find(tenant_of(request.scope), sha256)
        if found is not None and found.complete:
            return Response(status_code=200)
        headers = {OFFSET: str(found.size)} if found is not None and found.size else None
        return Response(status_code=404, headers=headers)

    async def delete(self, request: HTTPRequest, sha256: _Hash) -> Response:
        """Delete a complete or partial upload."""
        if not self._manager.uploads.delete(tenant_of(request.scope), sha256):
            raise unknown_upload_error(sha256)
        return Response(status_code=204)

    async def _store(self, request: HTTPRequest, sha256: str, body: UploadBody) -> Response:
        self._manager.check_open()
        tenant, length = tenant_of(request.scope), announced(request.scope)
        put = await self._manager.uploads.put(
            tenant, sha256, _byte_range(request), length, aiter(body)
        )
        if put.kind == "more":
            progress = UploadProgressResponse(received=put.received)
            return _json(progress, 202, {OFFSET: str(put.received)})
        stored = UploadedResponse(sha256=sha256, bytes=put.received)
        return _json(stored, 201 if put.kind == "made" else 200)


def upload_router(manager: SessionManager) -> APIRouter:
    """Create the routes."""
    routes = UploadRoutes(manager)
    router = APIRouter(prefix="/contexts", tags=["contexts"])
    router.put(
        "/{sha256}",
        status_code=201,
        response_model=UploadedResponse,
        responses={
            200: {"model": UploadedResponse},
            202: {"model": UploadProgressResponse},
            **_problems(*_PUT),
        },
        openapi_extra={"requestBody": _BODY},
    )(routes.put)
    router.head(
        "/{sha256}",
        response_class=Response,
        responses={404: {"description": "It is not there, or not whole."}, **_problems(422)},
    )(routes.head)
    router.delete("/{sha256}", status_code=204, responses=_problems(404))(routes.delete)
    return router


def _problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    return {status: {"model": ErrorResponse} for status in statuses}


def _json(message: BaseModel, status: int, headers: dict[str, str] | None = None) -> Response:
    return Response(message.model_dump_json(), status, headers, media_type=_JSON)


def _byte_range(request: HTTPRequest) -> ByteRange | None:
    """The range of the context in the body; None: all of it."""
    if request.headers.get("content-encoding", "identity") != "identity":
        raise invalid_upload_request("Content-Encoding: the hash is of the uncompressed bytes")
    given = request.headers.getlist("content-range")
    if not given:
        return None
    found = _CONTENT_RANGE.fullmatch(given[0])
    if found is None or len(given) > 1:
        raise invalid_upload_request("Content-Range must be one `bytes first-last/total`")
    byte_range = ByteRange(*map(int, found.groups()))
    if not byte_range.first <= byte_range.last < byte_range.total:
        raise invalid_upload_request(
            f"Content-Range: {byte_range.first}-{byte_range.last} is not within {byte_range.total}"
        )
    return byte_range


# `/files` and `/archive`: the files of the session that `X-Session-Id` names.

_FILES = "/files/"
# Entries of one response.
MOST_ENTRIES = 100_000
# Entries of a listing that others do not feel; most workspaces have fewer.
_SHORT_LISTING = 1_000
# Rows of a longer one that are serialized at once: half a millisecond.
_ROWS_AT_ONCE = 250


class _AnyName(PathConvertor):
    """A path in a route, with newlines too."""

    regex = "(?s:.*)"


class FileResponse(BaseModel):
    """An entry of a workspace. `modified`: seconds since 1970."""

    path: str
    size: int
    kind: Literal["file", "directory", "symlink", "other"]
    modified: float


class FilesResponse(BaseModel):
    """The entries below a directory. `complete`: false if some are missing here."""

    files: list[FileResponse]
    complete: bool


class WrittenResponse(BaseModel):
    """A file that was written."""

    size: int
    sha256: str


_Name = Annotated[str, Path(description="A file, relative to the workspace.")]
_Token = Annotated[str, Header(alias=SESSION, max_length=200, description="A session's token.")]
_Limit = Annotated[int, Query(ge=1, le=MOST_ENTRIES, description="Entries to return at most.")]
_Bytes = Annotated[
    int | None, Query(ge=1, le=1 << 50, description="Bytes of all its files, at most.")
]
_Folder = Annotated[str, Query(description="A directory, relative to the workspace.")]
_BINARY = {"content": {"application/octet-stream": {"schema": {"type": "string"}}}}
_TAR = {"content": {"application/x-tar": {"schema": {"type": "string"}}}}


class FileRoutes:
    """Handlers of the routes."""

    def __init__(self, manager: SessionManager) -> None:
        self._manager = manager

    async def list_(
        self, request: HTTPRequest, session: _Token, path: _Folder = "", limit: _Limit = 10_000
    ) -> Response:
        """List a directory of the workspace, and those below it."""
        found = self._session(request, session)
        work = self._list(found, _query_path(request.scope), limit)
        return await run_until_disconnect(request, work)

    async def get(self, request: HTTPRequest, path: _Name, session: _Token) -> Response:
        """Download a file of the workspace, or one range of it."""
        found = self._session(request, session)
        work = _get(request, found, _file_path(request.scope, path))
        return await run_until_disconnect(request, work)

    async def put(self, request: HTTPRequest, path: _Name, session: _Token) -> Response:
        """Write the body to a file of the workspace; directories above it are made."""
        body = UploadBody(request)
        try:
            found = self._session(request, session)
            return await self._write(request, found, _file_path(request.scope, path), body)
        except ClientDisconnect:
            return Response(status_code=400)  # nobody reads it
        except RequestError as refusal:
            answer = error_response(request, refusal)
            if not await body.drain(LINGER_S):
                answer.headers["Connection"] = "close"
            return answer

    async def archive(
        self, request: HTTPRequest, session: _Token, path: _Folder = "", limit: _Bytes = None
    ) -> Response:
        """Download a directory of the workspace as a tar archive."""
        found = self._session(request, session)
        work = _archive(found, _query_path(request.scope), limit)
        return await run_until_disconnect(request, work)

    async def _list(self, session: ServerSession, path: str, limit: int) -> Response:
        """The entries below a directory; long listings are made one at a time."""
        async with turn_of(session) as adapter:
            with file_errors():
                found = await adapter.files.list(path, limit=min(limit, _SHORT_LISTING))
                if found.complete or limit <= _SHORT_LISTING:
                    return Response(_text([_rows(found)], found.complete), media_type=_JSON)
                pieces = []
                async with self._manager.json_codec.alone(session.tenant):
                    async with turn():
                        found = await adapter.files.list(path, limit=limit)
                    for begin in range(0, len(found), _ROWS_AT_ONCE):
                        async with turn():
                            pieces.append(_rows(found[begin : begin + _ROWS_AT_ONCE]))
        return Response(_text(pieces, found.complete), media_type=_JSON)

    def _session(self, request: HTTPRequest, token: str) -> ServerSession:
        """The session that `token` names; RequestError UNKNOWN_SESSION."""
        return self._manager.find(tenant_of(request.scope), token)

    async def _write(
        self, request: HTTPRequest, session: ServerSession, path: str, body: UploadBody
    ) -> Response:
        """Write a file. The session is not held while the body arrives."""
        self._manager.check_open()
        tenant = tenant_of(request.scope)
        with file_upload(self._manager.uploads.quota, tenant) as upload:
            await upload.receive(aiter(body))
            content = upload.content
            async with turn_of(session) as adapter:
                with file_errors(), content.file() as fd:
                    await adapter.files.put(path, MemoryFile(fd, content.size))
            written = WrittenResponse(size=content.size, sha256=content.sha256)
        return Response(written.model_dump_json(), 201, media_type=_JSON)


def file_router(manager: SessionManager) -> APIRouter:
    """Create the routes."""
    routes = FileRoutes(manager)
    register_url_convertor("name", _AnyName())
    router = APIRouter(tags=["files"])
    router.get("/files", response_model=FilesResponse, responses=_problems(404, 409, 422, 429))(
        routes.list_
    )
    router.get(
        "/files/{path:name}",
        response_class=Response,
        responses={200: _BINARY, 206: _BINARY, **_problems(404, 409, 416, 422, 429)},
    )(routes.get)
    router.put(
        "/files/{path:name}",
        status_code=201,
        response_model=WrittenResponse,
        responses=_problems(404, 408, 409, 413, 422, 429, 503, 507),
        openapi_extra={"requestBody": _BINARY},
    )(routes.put)
    router.get(
        "/archive",
        response_class=Response,
        responses={200: _TAR, **_problems(404, 409, 422, 429)},
    )(routes.archive)
    return router


async def _get(request: HTTPRequest, session: ServerSession, path: str) -> Response:
    """A file, or a range of it; later requests of the session do not wait for the client."""
    async with turn_of(session) as adapter:
        with file_errors():
            file = await adapter.files.open(path)
    try:
        return file_download(request, file)
    except RequestError as refusal:
        answer = error_response(request, refusal)
        answer.headers["Content-Range"] = f"bytes */{file.size}"
        return answer


async def _archive(session: ServerSession, path: str, limit: int | None) -> Response:
    """A directory as a tar archive; the session waits for its client."""
    chunks = _archive_chunks(session, path, limit)
    # Errors of the path come as an error response, not amid the archive.
    first = await anext(chunks)
    return Download(_after(first, chunks), _archive_name(path), media_type="application/x-tar")


async def _archive_chunks(
    session: ServerSession, path: str, limit: int | None
) -> AsyncGenerator[bytes, None]:
    async with turn_of(session) as adapter:
        with file_errors():
            async with aclosing(adapter.files.archive_chunks(path, limit=limit)) as chunks:
                async for chunk in chunks:
                    yield chunk


async def _after(first: bytes, chunks: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(chunks):
        yield first
        async for chunk in chunks:
            yield chunk


def _text(pieces: Sequence[bytes], complete: bool) -> bytes:
    """The text of a listing, of the rows in `pieces`."""
    return b'{"files": [%b], "complete": %b}' % (
        b", ".join(pieces),
        b"true" if complete else b"false",
    )


def _rows(files: Sequence[File]) -> bytes:
    rows = [
        {"path": file.path, "size": file.size, "kind": file.kind, "modified": file.modified}
        for file in files
    ]
    # Escaped, so that bytes of a name which are no UTF-8 survive, as lone surrogates.
    return json.dumps(rows)[1:-1].encode()


def _file_path(scope: Scope, path: str) -> str:
    """The path behind `/files/`, with the bytes that the client sent: names may be no UTF-8."""
    raw = scope.get("raw_path")
    if raw is None:  # an ASGI server need not give it
        return path
    return os.fsdecode(unquote_to_bytes(raw.partition(b"?")[0].partition(_FILES.encode())[2]))


def _query_path(scope: Scope) -> str:
    """The parameter `path` of the query, likewise."""
    query = scope.get("query_string", b"").decode("latin-1")
    pairs = parse_qsl(query, keep_blank_values=True, errors="surrogateescape")
    return next((value for name, value in pairs if name == "path"), "")


def _archive_name(path: str) -> str:
    return f"{path.rstrip('/').rpartition('/')[2] or 'workspace'}.tar"
