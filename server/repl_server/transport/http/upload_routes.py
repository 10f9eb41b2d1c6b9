"""`/contexts/{sha256}`: upload, look up and delete contexts over HTTP.

Partial `PUT` follows RFC 9110 (14.5), with the `Upload-Offset` of the IETF's resumable uploads.
"""

# Annotations are not postponed: FastAPI evaluates them.

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Header, Path, Response
from fastapi import Request as HTTPRequest
from pydantic import BaseModel
from starlette.requests import ClientDisconnect

from ...limits.receive_buffers import LINGER_S
from ...protocol.request_error import RequestError
from ...sessions.manager import SessionManager
from ...tenants.tenant import tenant_of
from ...uploads.partial_upload import ByteRange, invalid_upload_request, unknown_upload_error
from .episode_routes import ErrorResponse, error_response
from .request_body import announced

OFFSET = "Upload-Offset"

# Up to fifteen digits: a petabyte, and exact in every JSON parser.
_RANGE = re.compile(r"bytes ([0-9]{1,15})-([0-9]{1,15})/([0-9]{1,15})")


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
    return Response(message.model_dump_json(), status, headers, media_type="application/json")


def _byte_range(request: HTTPRequest) -> ByteRange | None:
    """The range of the context in the body; None: all of it."""
    if request.headers.get("content-encoding", "identity") != "identity":
        raise invalid_upload_request("Content-Encoding: the hash is of the uncompressed bytes")
    given = request.headers.getlist("content-range")
    if not given:
        return None
    found = _RANGE.fullmatch(given[0])
    if found is None or len(given) > 1:
        raise invalid_upload_request("Content-Range must be one `bytes first-last/total`")
    byte_range = ByteRange(*map(int, found.groups()))
    if not byte_range.first <= byte_range.last < byte_range.total:
        raise invalid_upload_request(
            f"Content-Range: {byte_range.first}-{byte_range.last} is not within {byte_range.total}"
        )
    return byte_range
