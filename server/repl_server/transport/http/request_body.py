"""`RequestBody`: reads the body of one HTTP request within limits of size and time."""

from __future__ import annotations

import asyncio
from typing import Any, NoReturn

from starlette.types import Message, Receive, Scope

from ...limits.receive_buffers import ReceiveBuffers, receive_timeout
from ...protocol.request_error import RequestError
from ...protocol.validation import validation_error
from ...settings import Settings
from ...tenants.tenant import Tenant

# Uploads, of contexts and of files, are stored while they arrive, within limits of their own.
_CONTEXTS, _FILES = "/contexts/", "/files/"


class RequestBody:
    """The body of a request as the application receives it (ASGI's `receive`).

    A body that is announced as too large is refused before any of it is read. Received bytes are
    accounted to `tenant` until the body is released.

    Attributes:
        upload: the body is an upload, which the upload store accounts for.
        count: bytes received.
    """

    def __init__(
        self, scope: Scope, receive: Receive, settings: Settings, inbound: ReceiveBuffers
    ) -> None:
        self._receive = receive
        self._inbound = inbound
        self.tenant: Tenant | None = None
        self.upload = scope["method"] == "PUT" and scope["path"].startswith((_CONTEXTS, _FILES))
        self._limit = settings.largest_message
        if self.upload:
            whole = scope["path"].startswith(_CONTEXTS)
            self._limit = settings.context_bytes if whole else int(settings.limits.file_size)
        self._seconds = settings.body_s
        self._began = asyncio.get_running_loop().time()
        self._announced = announced(scope)
        self._coding = _coding(scope)
        self.count = self._accounted = 0
        self.whole = self._announced == 0
        self.refusal: RequestError | None = None
        self._waiting: asyncio.Timeout | None = None

    def begin(self, tenant: Tenant) -> None:
        """Account for the body under `tenant`, until it is released."""
        self.tenant = tenant
        self._inbound.begin(self)

    def check(self) -> None:
        """Reject a body whose headers announce too many bytes, or a compression.

        Raises:
            RequestError: TOO_LARGE; VALIDATION_ERROR.
        """
        if self._coding is not None and self._announced != 0:
            header, name = self._coding
            message = f"{name[:100]!r} is not supported: send bodies uncompressed"
            raise validation_error(f"header.{header}", message)
        if self._announced is not None and self._announced > self._limit:
            self._refuse_size()

    async def receive(self) -> Message:
        """The next chunk of the body.

        Raises:
            RequestError: TOO_LARGE, TOO_SLOW, RATE_LIMITED, or the error of `abort`; later calls
                raise it again.
        """
        if self.refusal is not None:
            raise self.refusal
        if self.whole:
            return await self._receive()
        try:
            due = self._began + receive_timeout(self._seconds, self.count)
            async with asyncio.timeout_at(due) as self._waiting:
                message = await self._receive()
        except TimeoutError:
            if self.refusal is not None:
                raise self.refusal from None
            self._refuse("TOO_SLOW", "The body did not come in time.")
        finally:
            self._waiting = None
        if message["type"] == "http.request":
            self._take(len(message.get("body", b"")))
            self.whole = not message.get("more_body", False)
        else:
            self.whole = True
        return message

    def abort(self, refusal: RequestError) -> None:
        """Fail with `refusal` unless the body is complete; wakes a waiting `receive`."""
        if self.whole or self.refusal is not None:
            return
        self.refusal = refusal
        if self._waiting is not None and not self._waiting.expired():
            self._waiting.reschedule(asyncio.get_running_loop().time())

    async def drain(self, seconds: float) -> None:
        """Read and discard the rest for a while: a client that still sends reads no response."""
        try:
            async with asyncio.timeout(seconds):
                while not self.whole:
                    message = await self._receive()
                    self.whole = not message.get("more_body", False)
        except TimeoutError:
            pass

    def release(self) -> None:
        """Release the memory of the body: the request is over."""
        self._inbound.done(self)
        if self._accounted:
            self._inbound.adjust(self.tenant, -self._accounted)
            self._accounted = 0

    def _take(self, count: int) -> None:
        self.count += count
        if self.count > self._limit:
            self._refuse_size()
        if self.upload:
            return
        if not self._inbound.adjust(self.tenant, count):
            self._refuse("RATE_LIMITED", "Too much is being received.", retry_after=1.0)
        self._accounted += count

    def _refuse_size(self) -> NoReturn:
        more = "" if self.upload else "; larger contexts can be uploaded"
        self._refuse("TOO_LARGE", f"the limit is {self._limit} bytes{more}", limit=self._limit)

    def _refuse(self, code: str, message: str, **more: Any) -> NoReturn:
        self.refusal = RequestError(code, message, **more)
        raise self.refusal


# Headers that name the coding of a body, and the values that leave the body unchanged.
_PLAIN = {
    b"content-encoding": ("Content-Encoding", frozenset({"", "identity"})),
    b"transfer-encoding": ("Transfer-Encoding", frozenset({"chunked"})),
}


def _coding(scope: Scope) -> tuple[str, str] | None:
    """The header that announces a compressed body, and its value; None without one."""
    for name, value in scope["headers"]:
        if name in _PLAIN:
            header, plain = _PLAIN[name]
            encoding = value.decode("latin-1").strip().lower()
            if encoding not in plain:
                return header, encoding
    return None


def announced(scope: Scope) -> int | None:
    """The announced size of the body; None if unknown."""
    length: int | None = 0
    for name, value in scope["headers"]:
        if name == b"content-length":
            # The parser accepts digits only, but any number of leading zeros.
            return int(value.lstrip(b"0") or b"0")
        if name == b"transfer-encoding":
            length = None
    return length
