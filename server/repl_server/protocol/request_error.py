"""`RequestError`: a request that the server does not perform, by the codes of `refusal_codes`."""

from __future__ import annotations

import json
import math
import uuid
from typing import Any

from repl_env.client.protocol.refusal_codes import CODES

# Header names and values as ASGI carries them.
Headers = list[tuple[bytes, bytes]]


class RequestError(Exception):
    """A request that failed or was refused, as its client sees it.

    `code` is a key of `repl_env.client.protocol.refusal_codes.CODES`. `retry_after` is in seconds;
    None if unknown. `details` are further fields of the reply. `id` identifies the error in the
    log.
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
        """The HTTP status."""
        return CODES[self.code].status

    @property
    def close(self) -> int | None:
        """The code to close a WebSocket with; None if the socket stays open after this error."""
        return CODES[self.code].close

    def data(self) -> dict[str, Any]:
        """The fields of the error reply."""
        fields: dict[str, Any] = {"message": self.message, "code": self.code, "id": self.id}
        if self.retry_after is not None:
            fields["retry_after"] = self.retry_after
        return {**fields, **self.details}


def draining_error() -> RequestError:
    """The error for requests that reach a server which is about to stop."""
    return RequestError("DRAINING", "the server is shutting down; try again later")


def socket_closed_error(close: int, reason: str) -> RequestError:
    """The error for a request whose session ended; `close`: the close code its socket would get."""
    drains = close == CODES["DRAINING"].close
    return RequestError("DRAINING" if drains else "UNKNOWN_SESSION", reason)


def http_response(refusal: RequestError) -> tuple[Headers, bytes]:
    """The headers and the body of an error as an HTTP response."""
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
