"""Uploads of contexts with `PUT /contexts/{sha256}`, from the first byte that the server lacks."""

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

# Called with the bytes sent and the bytes in total; may be asynchronous.
OnUpload: TypeAlias = Callable[[int, int], object]

# Bytes of one request. The server keeps the received part of a broken request, but a proxy that
# buffers bodies does not, and may limit their size and time: after a failure, requests get smaller.
PIECE, LEAST_PIECE = 16 << 20, 256 << 10
# Without an answer, and without an accepted byte.
SILENCE_S = 60.0
# A server that asks for a longer pause counts as away.
MOST_ASKED_FOR_S = 120.0
# Consecutive attempts at one piece.
MOST_ATTEMPTS = 6


# Many clients of a process may begin with one context, at the same time.
_SENDING = SingleFlight()


async def upload(
    parcels: Sequence[UploadBody],
    access: ServerAccess,
    *,
    most_piece: int | None = None,
    on_upload: OnUpload | None = None,
) -> None:
    """Upload all of `parcels`, except for those that the server already holds.

    Raises:
        TooLarge, QuotaExceeded, AuthenticationFailed: refusals of the server.
        ServerUnavailable: the server could not be reached several times in a row.
        ServerError: the bytes have another hash, for example of a file that is being written.
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
    """The progress of all uploads together."""

    def __init__(self, total: int, hear: OnUpload | None) -> None:
        self._total, self._hear = total, hear
        self._told: int | None = None
        self.done = 0

    async def add(self, size: int) -> None:
        """Record that the present upload, of `size` bytes, is complete, by any sender."""
        await self.tell(size)
        self.done += size

    async def tell(self, received: int) -> None:
        """Record that `received` bytes of the present upload have arrived."""
        there, before = self.done + received, self._told
        self._told = there
        if self._hear is not None and there != before:
            told = self._hear(there, self._total)
            if isawaitable(told):
                await told


class _Upload:
    """One upload."""

    def __init__(
        self, parcel: UploadBody, access: ServerAccess, connection: HttpConnection, piece: int
    ) -> None:
        self._parcel, self._access, self._connection = parcel, access, connection
        self._path = f"/contexts/{parcel.sha256}"
        self._read: Read | None = None
        self._piece = piece
        self._alone = True  # all bytes on the server were sent by this process

    async def run(self, tell: Callable[[int], Awaitable[None]]) -> None:
        """Ask for the received bytes, and send the rest."""
        received = await self._insisting(self._received)
        self._alone = received == 0
        try:
            await self._send_from(received, tell)
        except ServerError as error:
            if error.code != "CHANGED" or self._alone:
                raise
            # Another sender's bytes were wrong, and the server has dropped all of them.
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
        """Return the result of `attempt`, or the server's state after a failure."""
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
        """Return the number of bytes that the server has."""
        answer = await self._ask("HEAD")
        if answer.status == 200:
            return self._parcel.size
        if answer.status == 404:
            return self._part(answer.headers.get("upload-offset", "0"))
        raise self._refused(answer)

    async def _send(self, offset: int) -> int:
        """Send the piece from `offset` on; return the number of bytes that the server then has."""
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
        """Return the number of bytes of an incomplete context, as the server reports it.

        A server with all bytes may not have checked them yet: the last byte is sent again, and the
        answer
        reports the check.
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
    """Return the error for bytes that do not match their hash, as of a file that is being
    written.
    """
    return ServerError(f"{name} has changed while it was sent", code="CHANGED")


def _name(access: ServerAccess, parcel: UploadBody) -> Hashable:
    """Return a key that is equal for clients that send the same to the same server as the same
    owner.
    """
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
