"""`RequestError`: what a request is message that cannot be done, by the table of `repl_env.client.protocol.refusal_codes`."""

from __future__ import annotations

import json
import math
import uuid
from typing import Any

from repl_env.client.protocol.refusal_codes import CODES

Headers = list[tuple[bytes, bytes]]


class RequestError(Exception):
    """A request that is refused.

    `code` is one of `repl_env.client.protocol.refusal_codes.CODES`. `retry_after` is in seconds, if that is known.
    `details` are further fields of the reply. `id` finds the refusal in the log.
    """

    def __init__(
        self, code: str, message: str, *, retry_after: float | None = None, **details: Any
    ) -> None:
        self.code = code
        self.message = message
        self.retry_after = retry_after
        self.details = details
        self.id = uuid.uuid4().hex
        super().__init__(f"{code}: {message}")

    @property
    def status(self) -> int:
        """The status in HTTP."""
        return CODES[self.code].status

    @property
    def close(self) -> int | None:
        """The close code of a WebSocket that ends with this refusal; None if it lives."""
        return CODES[self.code].close

    def data(self) -> dict[str, Any]:
        """The fields of the reply."""
        message: dict[str, Any] = {"message": self.message, "code": self.code, "id": self.id}
        if self.retry_after is not None:
            message["retry_after"] = self.retry_after
        return {**message, **self.details}


def draining_error() -> RequestError:
    """What whoever asks for something learns when the server is about to stop."""
    return RequestError(
        "DRAINING", "the server is about to stop, with its sessions; ask again later"
    )


def socket_closed_error(close: int, reason: str) -> RequestError:
    """Of a session that has ended, as a socket would be closed with the code `close`."""
    drains = close == CODES["DRAINING"].close
    return RequestError("DRAINING" if drains else "UNKNOWN_SESSION", reason)


def http_response(refusal: RequestError) -> tuple[Headers, bytes]:
    """The headers and the body of a refusal in HTTP."""
    text = json.dumps(refusal.data()).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(text)).encode()),
    ]
    if refusal.retry_after is not None:
        headers.append((b"retry-after", str(math.ceil(refusal.retry_after)).encode()))
    if refusal.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    return headers, text
