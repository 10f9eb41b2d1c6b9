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
CHUNK, MIN_CHUNK = 16 << 20, 256 << 10
# Without an answer, and without an accepted byte.
REQUEST_TIMEOUT_S = 60.0
# A server that asks for a longer pause counts as away.
MAX_RETRY_AFTER_S = 120.0
# Consecutive attempts at one piece.
MAX_ATTEMPTS = 6


# Many clients of a process may begin with one context, at the same time.
_UPLOADS = SingleFlight()


async def upload(
    bodies: Sequence[UploadBody],
    access: ServerAccess,
    *,
    max_chunk: int | None = None,
    on_upload: OnUpload | None = None,
) -> None:
    """Upload all of `bodies`, except for those that the server already holds.

    Raises:
        TooLarge, QuotaExceeded, AuthenticationFailed: refusals of the server.
        ServerUnavailable: the server could not be reached several times in a row.
        ServerError: the bytes have another hash, for example of a file that is being written.
    """
    progress = _Progress(sum(body.size for body in bodies), on_upload)
    await progress.report(0)
    connection = HttpConnection(access, REQUEST_TIMEOUT_S)
    try:
        for body in bodies:
            this_upload = _Upload(body, access, connection, min(max_chunk or CHUNK, CHUNK))
            await _UPLOADS.once(_name(access, body), partial(this_upload.run, progress.report))
            await progress.add(body.size)
    finally:
        connection.close()


class _Progress:
    """The progress of all uploads together."""

    def __init__(self, total: int, on_upload: OnUpload | None) -> None:
        self._total, self._on_upload = total, on_upload
        self._reported: int | None = None
        self.done = 0

    async def add(self, size: int) -> None:
        """Record that the present upload, of `size` bytes, is complete, by any sender."""
        await self.report(size)
        self.done += size

    async def report(self, received: int) -> None:
        """Record that `received` bytes of the present upload have arrived."""
        sent, reported = self.done + received, self._reported
        self._reported = sent
        if self._on_upload is not None and sent != reported:
            returned = self._on_upload(sent, self._total)
            if isawaitable(returned):
                await returned


class _Upload:
    """One upload."""

    def __init__(
        self, body: UploadBody, access: ServerAccess, connection: HttpConnection, chunk: int
    ) -> None:
        self._body, self._access, self._connection = body, access, connection
        self._path = f"/contexts/{body.sha256}"
        self._read: Read | None = None
        self._chunk_size = chunk
        self._sole_sender = True  # all bytes on the server were sent by this process

    async def run(self, report: Callable[[int], Awaitable[None]]) -> None:
        """Ask for the received bytes, and send the rest."""
        received = await self._with_retries(self._received)
        self._sole_sender = received == 0
        try:
            await self._send_from(received, report)
        except ServerError as error:
            if error.code != "CHANGED" or self._sole_sender:
                raise
            # Another sender's bytes were wrong, and the server has dropped all of them.
            await self._send_from(0, report)

    async def _send_from(self, received: int, report: Callable[[int], Awaitable[None]]) -> None:
        furthest, idle = 0, 0
        while received < self._body.size:
            await report(received)
            previous, received = received, await self._with_retries(partial(self._send, received))
            if received > furthest:
                furthest, idle = received, 0
            elif received <= previous:
                idle += 1
            if idle == MAX_ATTEMPTS:
                raise ServerUnavailable(f"pieces of {self._body.name} do not arrive")

    async def _with_retries(self, attempt: Callable[[], Awaitable[int]]) -> int:
        """Return the result of `attempt`, or the server's state after a failure."""
        for number in range(1, MAX_ATTEMPTS):
            try:
                return await attempt()
            except ServerUnavailable as error:
                self._chunk_size = max(MIN_CHUNK, self._chunk_size // 2)
                asked_for = error.retry_after or 0.0
                if asked_for > MAX_RETRY_AFTER_S:
                    raise
                await asyncio.sleep(max(pause(number), asked_for))
                attempt = self._received
        return await attempt()

    async def _received(self) -> int:
        """Return the number of bytes that the server has."""
        answer = await self._ask("HEAD")
        if answer.status == 200:
            return self._body.size
        if answer.status == 404:
            return self._incomplete(answer.headers.get("upload-offset", "0"))
        raise self._refused(answer)

    async def _send(self, offset: int) -> int:
        """Send the piece from `offset` on; return the number of bytes that the server then has."""
        body = self._body
        if self._read is None:
            self._read = await asyncio.to_thread(body.open)
        chunk = await asyncio.to_thread(self._read, offset, self._chunk_size)
        if not chunk:
            raise _changed(body.name)
        content_range = f"bytes {offset}-{offset + len(chunk) - 1}/{body.size}"
        answer = await self._ask("PUT", chunk, {"Content-Range": content_range})
        match answer.status:
            case 200 | 201:
                return body.size
            case 202 | 409:
                self._sole_sender = self._sole_sender and answer.status == 202
                return self._incomplete(_body(answer).get("received"))
            case 422:
                raise _changed(body.name)
        raise self._refused(answer)

    def _incomplete(self, count: Any) -> int:
        """Return the number of bytes of an incomplete context, as the server reports it.

        A server with all bytes may not have checked them yet: the last byte is sent again, and the
        answer reports the check.
        """
        return min(_count(count), self._body.size - 1)

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


def _name(access: ServerAccess, body: UploadBody) -> Hashable:
    """Return a key that is equal for clients that send the same to the same server as the same
    owner.
    """
    return str(access.address), tuple(sorted(access.headers.items())), body.sha256


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
        data = json.loads(answer.body)
    except (ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}
