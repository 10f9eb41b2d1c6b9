"""`/files` and `/archive`: the files of the session that `X-Session-Id` names."""

# Annotations are not postponed: FastAPI evaluates them.

import asyncio
import json
import os
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, Any, Literal
from urllib.parse import parse_qsl, unquote_to_bytes

from fastapi import APIRouter, Header, Path, Query, Response
from fastapi import Request as HTTPRequest
from pydantic import BaseModel
from starlette.convertors import PathConvertor, register_url_convertor
from starlette.requests import ClientDisconnect
from starlette.types import Scope

from repl_sandbox.session.files.local_files import MemoryFile
from repl_sandbox.types import Listing

from ...limits.receive_buffers import LINGER_S
from ...protocol.error_mapping import file_errors
from ...protocol.request_error import RequestError
from ...sessions.manager import SessionManager
from ...sessions.server_session import ServerSession
from ...sessions.session_turn import turn_of
from ...tenants.tenant import tenant_of
from ...uploads.file_upload import file_upload
from .disconnect import run_until_disconnect
from .episode_routes import SESSION, ErrorResponse, error_response
from .file_download import Download, file_download
from .upload_routes import UploadBody

_FILES = "/files/"
# Entries of one response.
MOST_ENTRIES = 100_000


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
        work = _list(found, _query_path(request.scope), limit)
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
        return Response(written.model_dump_json(), 201, media_type="application/json")


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


async def _list(session: ServerSession, path: str, limit: int) -> Response:
    """The entries below a directory."""
    async with turn_of(session) as adapter:
        with file_errors():
            found = await adapter.files.list(path, limit=limit)
    return Response(await asyncio.to_thread(_text, found), media_type="application/json")


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


def _problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    return {status: {"model": ErrorResponse} for status in statuses}


def _text(found: Listing) -> bytes:
    rows = [
        {"path": file.path, "size": file.size, "kind": file.kind, "modified": file.modified}
        for file in found
    ]
    # Escaped, so that bytes of a name which are no UTF-8 survive, as lone surrogates.
    return json.dumps({"files": rows, "complete": found.complete}).encode()


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
