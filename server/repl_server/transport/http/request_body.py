"""`RequestBody`: the body of one HTTP request, of a bounded size and in bounded time, piece by
piece.
"""

from __future__ import annotations

import asyncio
from typing import Any, NoReturn

from starlette.types import Message, Receive, Scope

from ...limits.receive_buffers import ReceiveBuffers, receive_timeout
from ...protocol.request_error import RequestError
from ...protocol.validation import validation_error
from ...settings import Settings
from ...tenants.tenant import Tenant

# Uploads are kept elsewhere, under limits of their own, as they come in.
_UPLOADS = "/contexts/"


class RequestBody:
    """What the application receives of a request, as ASGI's `receive`.

    A request that says beforehand that it is too large is refused before any of it is read. Its
    bytes are booked under `tenant` until it is released.

    Attributes:
        upload: it is one, which is kept and booked elsewhere.
        count: bytes that came.
    """

    def __init__(
        self, scope: Scope, receive: Receive, settings: Settings, inbound: ReceiveBuffers
    ) -> None:
        self._receive = receive
        self._inbound = inbound
        self.tenant: Tenant | None = None
        self.upload = scope["method"] == "PUT" and scope["path"].startswith(_UPLOADS)
        self._limit = settings.context_bytes if self.upload else settings.largest_message
        self._seconds = settings.body_s
        self._began = asyncio.get_running_loop().time()
        self._announced = announced(scope)
        self._coding = _coding(scope)
        self.count = self._held = 0
        self.whole = self._announced == 0
        self.refusal: RequestError | None = None
        self._waiting: asyncio.Timeout | None = None

    def begin(self, tenant: Tenant) -> None:
        """The request was let in: it is `tenant`'s, until it is released."""
        self.tenant = tenant
        self._inbound.begin(self)

    def check(self) -> None:
        """Refuse what is too large, or packed, by its own account.

        Raises:
            Refusal: TOO_LARGE; VALIDATION_ERROR.
        """
        if self._coding is not None and self._announced != 0:
            header, name = self._coding
            message = f"{name[:100]!r} is not read: bodies are sent as they are, not compressed"
            raise validation_error(f"header.{header}", message)
        if self._announced is not None and self._announced > self._limit:
            self._refuse_size()

    async def receive(self) -> Message:
        """The next piece.

        Raises:
            Refusal: TOO_LARGE, TOO_SLOW, RATE_LIMITED, or as it was `cut`; and again whenever it
                is called after.
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
        """Refuse the request if its body has not come whole, now and not when more of it comes."""
        if self.whole or self.refusal is not None:
            return
        self.refusal = refusal
        if self._waiting is not None and not self._waiting.expired():
            self._waiting.reschedule(asyncio.get_running_loop().time())

    async def drain(self, seconds: float) -> None:
        """Read on and forget, for a while: who still sends would not see the answer."""
        try:
            async with asyncio.timeout(seconds):
                while not self.whole:
                    message = await self._receive()
                    self.whole = not message.get("more_body", False)
        except TimeoutError:
            pass

    def release(self) -> None:
        """The request is over: its body takes no memory any more."""
        self._inbound.done(self)
        if self._held:
            self._inbound.adjust(self.tenant, -self._held)
            self._held = 0

    def _take(self, count: int) -> None:
        self.count += count
        if self.count > self._limit:
            self._refuse_size()
        if self.upload:
            return
        if not self._inbound.adjust(self.tenant, count):
            self._refuse("RATE_LIMITED", "Too much is being received.", retry_after=1.0)
        self._held += count

    def _refuse_size(self) -> NoReturn:
        more = "" if self.upload else " Contexts that are larger can be uploaded."
        self._refuse("TOO_LARGE", f"The limit is {self._limit} bytes.{more}", limit=self._limit)

    def _refuse(self, code: str, message: str, **more: Any) -> NoReturn:
        self.refusal = RequestError(code, message, **more)
        raise self.refusal


# What says how a body is coded, and the words that leave it as it is.
_PLAIN = {
    b"content-encoding": ("Content-Encoding", frozenset({"", "identity"})),
    b"transfer-encoding": ("Transfer-Encoding", frozenset({"chunked"})),
}


def _coding(scope: Scope) -> tuple[str, str] | None:
    """The header that says that the body is packed, and how; None if none does."""
    for name, value in scope["headers"]:
        if name in _PLAIN:
            header, plain = _PLAIN[name]
            said = value.decode("latin-1").strip().lower()
            if said not in plain:
                return header, said
    return None


def announced(scope: Scope) -> int | None:
    """How long the body is said to be; None if that is not said."""
    length: int | None = 0
    for name, value in scope["headers"]:
        if name == b"content-length":
            # The parser let nothing but digits through, as many zeros as there may be before them.
            return int(value.lstrip(b"0") or b"0")
        if name == b"transfer-encoding":
            length = None
    return length
