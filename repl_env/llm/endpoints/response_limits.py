"""Limits on responses of endpoints, applied to the received and the decompressed bytes.

The libraries read a whole answer, and a whole event of a stream, into memory before they return it.
Their HTTP clients call this module after the headers, and it wraps the body's stream.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

from repl_env.errors import ModelError

# Bytes of a whole answer, and of one event. A stranger's JSON takes up to thirty times its length
# in memory.
MAX_ANSWER_BYTES = 64 << 20
# Bytes of all events of a stream, which are held one at a time: a token takes half a kilobyte.
MAX_STREAM_BYTES = 8 * MAX_ANSWER_BYTES
# Compressed bytes that are decompressed at a time.
_PIECE = 64 << 10
# zlib's value for gzip with a header.
_GZIP = 16 + zlib.MAX_WBITS
_BLANK_LINES = (b"\n\n", b"\n\r\n", b"\r\r")


def bound_responses(client: Any, *, stream: bool = False) -> None:
    """Make oversized answers to an async client of httpx or httpx2 end in a ModelError.

    `stream`: answers are events, which are read one by one.
    """

    async def limit(response: Any) -> None:
        body = _LimitedBody(_encoding(response.headers), stream=stream)
        body.expect(response.headers.get("content-length", ""))
        response.headers.pop("content-encoding", None)  # the library finds it done
        response.stream = _bounded(response.stream, body)

    hooks = client.event_hooks
    # First, as others may read the body of a refusal.
    client.event_hooks = {**hooks, "response": [limit, *hooks["response"]]}
    # Methods that can be decompressed in pieces. With others a kilobyte may become a gigabyte at
    # once.
    client.headers["accept-encoding"] = "gzip"


def _encoding(headers: Any) -> str:
    """Return the compression of the body, or ""; ModelError for one that was not requested."""
    named = str(headers.get("content-encoding", "")).strip().lower()
    if named in ("", "identity"):
        return ""
    if named in ("gzip", "x-gzip"):
        return "gzip"
    raise ModelError("server", f"the answer is compressed as {named[:20]!r}, not as gzip")


class _LimitedBody:
    """The bytes of one answer so far."""

    def __init__(self, encoding: str, *, stream: bool) -> None:
        self._max_bytes = MAX_STREAM_BYTES if stream else MAX_ANSWER_BYTES
        self._gzip = zlib.decompressobj(_GZIP) if encoding else None
        self._stream = stream
        self._size = 0
        self._event = 0  # bytes since the last empty line
        self._end = b""

    def expect(self, length: str) -> None:
        """Raise ModelError if the header announces too many bytes."""
        if length.isdecimal() and (len(length) > 18 or int(length) > self._max_bytes):
            raise _too_large(self._max_bytes)

    def take(self, chunk: bytes) -> Iterator[bytes]:
        """Return the decompressed `chunk`; ModelError as soon as the limit is exceeded."""
        for piece in self._pieces(chunk):
            self._size += len(piece)
            if self._size > self._max_bytes:
                raise _too_large(self._max_bytes)
            if self._stream:
                self._check_event(piece)
            yield piece

    def _pieces(self, chunk: bytes) -> Iterator[bytes]:
        if self._gzip is None:
            yield chunk
            return
        try:
            while chunk and not self._gzip.eof:
                yield self._gzip.decompress(chunk, _PIECE)
                chunk = self._gzip.unconsumed_tail
        except zlib.error:
            raise ModelError("server", "the answer is no gzip", retryable=True) from None

    def _check_event(self, piece: bytes) -> None:
        seen = self._end + piece
        end = max(seen.rfind(line) for line in _BLANK_LINES)
        self._event = len(seen) - end if end >= 0 else self._event + len(piece)
        self._end = seen[-2:]
        if self._event > MAX_ANSWER_BYTES:
            raise _too_large(MAX_ANSWER_BYTES)


def _too_large(max_bytes: int) -> ModelError:
    return ModelError("server", f"the answer has more than {max_bytes >> 20} MiB")


def _bounded(stream: Any, body: _LimitedBody) -> Any:
    """Return `stream` limited by `body`, as the stream class that the client's library requires."""
    kinds = type(stream).__mro__
    return _stream_type(next(each for each in kinds if each.__name__ == "AsyncByteStream"))(
        stream, body
    )


@functools.cache
def _stream_type(base: Any) -> Any:
    class Bounded(base):  # type: ignore[misc]
        def __init__(self, stream: Any, body: _LimitedBody) -> None:
            self._stream, self._body = stream, body

        async def __aiter__(self) -> AsyncIterator[bytes]:
            async for chunk in self._stream:
                for piece in self._body.take(chunk):
                    yield piece

        async def aclose(self) -> None:
            await self._stream.aclose()

    return Bounded
