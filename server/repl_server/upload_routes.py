"""`/contexts/{sha256}`: contexts sent, asked for and deleted, over HTTP."""

# Annotations are not postponed: FastAPI reads the handlers'.

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Header, Path, Response
from fastapi import Request as HTTPRequest
from pydantic import BaseModel
from starlette.requests import ClientDisconnect

from .bodies import announced
from .guarding import LINGER_S
from .half import Piece, wrong
from .hosting import Host
from .owners import owner_of
from .refusal import Refusal
from .routes import Problem, refused
from .uploads import Put

# Fifteen digits: numbers that JSON's readers have exactly, and a petabyte.
_RANGE = re.compile(r"bytes ([0-9]{1,15})-([0-9]{1,15})/([0-9]{1,15})")


class Stored(BaseModel):
    """A context that is there, whole."""

    sha256: str
    bytes: int


class Received(BaseModel):
    """How much of a context is there; the next piece begins with that byte."""

    received: int


class Pieces:
    """The body of a request, piece by piece."""

    def __init__(self, request: HTTPRequest) -> None:
        self._pieces = request.stream()
        # Who waits to be asked for it sends nothing before.
        self._begun = request.headers.get("expect", "").lower() != "100-continue"

    async def __aiter__(self) -> AsyncIterator[bytes]:
        self._begun = True
        async for piece in self._pieces:
            yield piece

    async def drain(self, seconds: float | None) -> bool:
        """Read on and forget: who still sends reads no answer. Whether that was all of it.

        Raises:
            ClientDisconnect: the client is gone.
        """
        if not self._begun:
            return False
        try:
            async with asyncio.timeout(seconds):
                async for _ in self._pieces:
                    pass
        except TimeoutError:
            return False
        return True


class UploadRoutes:
    """The handlers, on one host."""

    def __init__(self, host: Host) -> None:
        self._host = host

    async def put(self, request: HTTPRequest, sha256: str) -> Response:
        """Take a context, or a piece of one."""
        body = Pieces(request)
        try:
            answer = _answer(sha256, await self._put(request, sha256, body))
            whole = await body.drain(None)
        except ClientDisconnect:
            return Response(status_code=400)  # which nobody reads
        except Refusal as refusal:
            answer, whole = refused(request, refusal), await body.drain(LINGER_S)
        if not whole:
            answer.headers["Connection"] = "close"
        return answer

    async def _put(self, request: HTTPRequest, sha256: str, body: Pieces) -> Put:
        self._host.check_open()
        owner, piece, length = owner_of(request.scope), _piece(request), announced(request.scope)
        return await self._host.uploads.put(owner, sha256, piece, length, aiter(body))

    async def head(self, request: HTTPRequest, sha256: str) -> Response:
        """Whether a context is there, and if not, how much of it."""
        owner, uploads = owner_of(request.scope), self._host.uploads
        if uploads.find(owner, sha256) is not None:
            return Response(status_code=200)
        received = uploads.received(owner, sha256)
        headers = None if received is None else {"Upload-Offset": str(received)}
        return Response(status_code=404, headers=headers)

    async def delete(self, request: HTTPRequest, sha256: str) -> Response:
        """Forget a context, or what came of it."""
        if not self._host.uploads.delete(owner_of(request.scope), sha256):
            raise self._host.uploads.unknown(sha256)
        return Response(status_code=204)


_Hash = Annotated[str, Path(pattern="^[0-9a-f]{64}$", description="SHA-256 of the whole context.")]
_ContentRange = Annotated[
    str | None, Header(alias="Content-Range", description="`bytes first-last/total` of a piece.")
]
_BODY = {"content": {"application/octet-stream": {"schema": {"type": "string"}}}}


def upload_router(host: Host) -> APIRouter:
    """The routes, on `host`."""
    routes = UploadRoutes(host)
    made = APIRouter(tags=["contexts"])

    async def put(
        request: HTTPRequest, sha256: _Hash, content_range: _ContentRange = None
    ) -> Response:
        """Send a context, whole or in pieces, one after the other."""
        return await routes.put(request, sha256)

    async def head(request: HTTPRequest, sha256: _Hash) -> Response:
        """Ask for a context."""
        return await routes.head(request, sha256)

    async def delete(request: HTTPRequest, sha256: _Hash) -> Response:
        """Forget a context."""
        return await routes.delete(request, sha256)

    path = "/contexts/{sha256}"
    made.add_api_route(
        path,
        put,
        methods=["PUT"],
        status_code=201,
        response_model=Stored,
        responses={200: {"model": Stored}, 202: {"model": Received}, **_problems(*_PUT)},
        openapi_extra={"requestBody": _BODY},
    )
    made.add_api_route(
        path,
        head,
        methods=["HEAD"],
        response_class=Response,
        responses={404: {"description": "It is not there, or not whole."}, **_problems(422)},
    )
    made.add_api_route(path, delete, methods=["DELETE"], status_code=204, responses=_problems(404))
    return made


_PUT = (400, 404, 408, 409, 413, 422, 429, 503, 507)


def _problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    return {status: {"model": Problem} for status in statuses}


def _answer(sha256: str, put: Put) -> Response:
    if put.kind == "more":
        more = Received(received=put.received).model_dump_json()
        return _json(more, 202, {"Range": f"bytes=0-{put.received - 1}"})
    stored = Stored(sha256=sha256, bytes=put.received).model_dump_json()
    return _json(stored, 201 if put.kind == "made" else 200)


def _json(text: str, status: int, headers: dict[str, str] | None = None) -> Response:
    return Response(text, status, headers, media_type="application/json")


def _piece(request: HTTPRequest) -> Piece | None:
    """Which part of the context the body is; None: all of it."""
    if request.headers.get("content-encoding", "identity") != "identity":
        raise wrong("Content-Encoding: the hash is of the bytes as they are sent")
    given = request.headers.getlist("content-range")
    if not given:
        return None
    found = _RANGE.fullmatch(given[0])
    if found is None or len(given) > 1:
        raise wrong("Content-Range must be once `bytes first-last/total`")
    piece = Piece(*map(int, found.groups()))
    if not piece.first <= piece.last < piece.total:
        raise wrong(f"Content-Range: there are no bytes {piece.first} to {piece.last} of that many")
    return piece
