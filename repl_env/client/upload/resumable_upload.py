"""Contexts to a server by `PUT /contexts/{sha256}`, from the byte on that the server lacks."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from functools import partial
from inspect import isawaitable
from typing import Any, TypeAlias

from repl_env.client.connection.server_address import ServerAccess
from repl_env.client.connection.timeouts import pause
from repl_env.client.protocol import refusal_errors
from repl_env.client.upload.http_client import HttpConnection, HttpResponse
from repl_env.client.upload.single_flight import SingleFlight
from repl_env.client.upload.upload_body import Read, UploadBody
from repl_env.errors import ServerError, ServerUnavailable

# Called with the bytes that are there and those that are to be there; may be asynchronous.
OnUpload: TypeAlias = Callable[[int, int], object]

# Bytes of one request. The server keeps what came of one that breaks off, but a proxy that collects
# bodies does not, and may limit their size and time: after trouble, requests become smaller.
PIECE, LEAST_PIECE = 16 << 20, 256 << 10
# Without an answer, and without a byte taken.
SILENCE_S = 60.0
# A server that wants to be left alone for longer is away.
MOST_ASKED_FOR_S = 120.0
# Attempts in a row at one piece.
MOST_ATTEMPTS = 6


# Many clients of a process begin with one context, at once.
_SENDING = SingleFlight()


async def upload(
    parcels: Sequence[UploadBody],
    access: ServerAccess,
    *,
    most_piece: int | None = None,
    on_upload: OnUpload | None = None,
) -> None:
    """Have the server hold all of `parcels`. What it holds already is not sent.

    Raises:
        TooLarge, QuotaExceeded, AuthenticationFailed: as the server says.
        ServerUnavailable: it could not be reached several times in a row.
        ServerError: the bytes had another hash, as a file that is written meanwhile has.
    """
    progress = _Progress(sum(parcel.size for parcel in parcels), on_upload)
    await progress.tell(0)
    connection = HttpConnection(access, SILENCE_S)
    try:
        for parcel in parcels:
            sending = _Upload(parcel, access, connection, min(most_piece or PIECE, PIECE))
            await _SENDING.once(_name(access, parcel), partial(sending.run, progress.tell))
            await progress.add(parcel.size)
    finally:
        connection.close()


class _Progress:
    """How far all of them are."""

    def __init__(self, total: int, hear: OnUpload | None) -> None:
        self._total, self._hear = total, hear
        self._told: int | None = None
        self.done = 0

    async def add(self, size: int) -> None:
        """The present one, of `size` bytes, is there, whoever sent it."""
        await self.tell(size)
        self.done += size

    async def tell(self, received: int) -> None:
        """`received` bytes of the present one are there."""
        there, before = self.done + received, self._told
        self._told = there
        if self._hear is not None and there != before:
            told = self._hear(there, self._total)
            if isawaitable(told):
                await told


class _Upload:
    """One of them."""

    def __init__(
        self, parcel: UploadBody, access: ServerAccess, connection: HttpConnection, piece: int
    ) -> None:
        self._parcel, self._access, self._connection = parcel, access, connection
        self._path = f"/contexts/{parcel.sha256}"
        self._read: Read | None = None
        self._piece = piece
        self._alone = True  # all bytes that the server has of it were sent here

    async def run(self, tell: Callable[[int], Awaitable[None]]) -> None:
        """Ask what is there, and send what is not."""
        received = await self._insisting(self._received)
        self._alone = received == 0
        try:
            await self._send_from(received, tell)
        except ServerError as error:
            if error.code != "CHANGED" or self._alone:
                raise
            # Bytes of another sender were wrong, and the server has dropped all of them.
            await self._send_from(0, tell)

    async def _send_from(self, received: int, tell: Callable[[int], Awaitable[None]]) -> None:
        furthest, idle = 0, 0
        while received < self._parcel.size:
            await tell(received)
            before, received = received, await self._insisting(partial(self._send, received))
            if received > furthest:
                furthest, idle = received, 0
            elif received <= before:
                idle += 1
            if idle == MOST_ATTEMPTS:
                raise ServerUnavailable(f"pieces of {self._parcel.name} do not arrive")

    async def _insisting(self, attempt: Callable[[], Awaitable[int]]) -> int:
        """What `attempt` returns, or what the server has, if it was away meanwhile."""
        for number in range(1, MOST_ATTEMPTS):
            try:
                return await attempt()
            except ServerUnavailable as error:
                self._piece = max(LEAST_PIECE, self._piece // 2)
                asked_for = error.retry_after or 0.0
                if asked_for > MOST_ASKED_FOR_S:
                    raise
                await asyncio.sleep(max(pause(number), asked_for))
                attempt = self._received
        return await attempt()

    async def _received(self) -> int:
        """How many bytes the server has."""
        answer = await self._ask("HEAD")
        if answer.status == 200:
            return self._parcel.size
        if answer.status == 404:
            return self._part(answer.headers.get("upload-offset", "0"))
        raise self._refused(answer)

    async def _send(self, offset: int) -> int:
        """Send the piece from `offset` on; how many bytes the server has then."""
        parcel = self._parcel
        if self._read is None:
            self._read = await asyncio.to_thread(parcel.open)
        piece = await asyncio.to_thread(self._read, offset, self._piece)
        if not piece:
            raise _changed(parcel.name)
        place = f"bytes {offset}-{offset + len(piece) - 1}/{parcel.size}"
        answer = await self._ask("PUT", piece, {"Content-Range": place})
        match answer.status:
            case 200 | 201:
                return parcel.size
            case 202 | 409:
                self._alone = self._alone and answer.status == 202
                return self._part(_body(answer).get("received"))
            case 422:
                raise _changed(parcel.name)
        raise self._refused(answer)

    def _part(self, count: Any) -> int:
        """How many bytes the server has of a context that is not there, as it says.

        Though it has them all, it may not have looked at them yet: the last one is sent again,
        and the answer says what became of the others.
        """
        return min(_count(count), self._parcel.size - 1)

    async def _ask(
        self, method: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> HttpResponse:
        ask = partial(self._connection.request, method, self._path, body, headers or {})
        return await asyncio.to_thread(ask)

    def _refused(self, answer: HttpResponse) -> Exception:
        return refusal_errors.error_of_status(
            answer.status, answer.headers, answer.body, self._access.secrets
        )


def _changed(name: str) -> ServerError:
    """The bytes do not have their hash, as of a file that is written meanwhile."""
    return ServerError(f"{name} has changed while it was sent", code="CHANGED")


def _name(access: ServerAccess, parcel: UploadBody) -> Hashable:
    """The same for clients that send the same to the same server, as the same owner."""
    return str(access.address), tuple(sorted(access.headers.items())), parcel.sha256


def _count(value: Any) -> int:
    try:
        count = int(value)
    except (TypeError, ValueError, OverflowError):
        count = -1
    if count < 0:
        raise ServerError("the server does not say how much of a context it has", code="BAD_REPLY")
    return count


def _body(answer: HttpResponse) -> dict[str, Any]:
    try:
        said = json.loads(answer.body)
    except (ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}
