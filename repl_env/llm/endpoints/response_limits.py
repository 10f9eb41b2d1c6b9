"""What an endpoint sends, bounded before a library holds it: as it comes, and uncompressed.

The libraries read a whole answer, and a whole event of a stream, into memory before anybody else
sees it. What stands here is called by their HTTP clients when headers have come, and takes the
place of the body's stream.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

from repl_env.errors import ModelError

# Bytes of an answer that is read whole, and of one event. JSON of a stranger's choice takes up to
# thirty times as much memory as it is long.
MOST = 64 << 20
# Of all events of a stream, of which one at a time is held: a token takes half a kilobyte there.
MOST_STREAMED = 8 * MOST
# Of compressed bytes, taken apart at a time.
_PIECE = 64 << 10
# zlib's for gzip, told by its header.
_GZIP = 16 + zlib.MAX_WBITS
_BLANK_LINES = (b"\n\n", b"\n\r\n", b"\r\r")


def bound_responses(client: Any, *, stream: bool = False) -> None:
    """Have answers to an asynchronous client, of httpx or httpx2, end in a ModelError if too large.

    `stream`: they come as events, which are read one by one.
    """

    async def limit(response: Any) -> None:
        body = _Body(_encoding(response.headers), stream=stream)
        body.expect(response.headers.get("content-length", ""))
        response.headers.pop("content-encoding", None)  # the library finds it done
        response.stream = _bounded(response.stream, body)

    hooks = client.event_hooks
    # First: others may read the body of a refusal.
    client.event_hooks = {**hooks, "response": [limit, *hooks["response"]]}
    # What can be taken apart in pieces. Of other methods a kilobyte may become a gigabyte at once.
    client.headers["accept-encoding"] = "gzip"


def _encoding(headers: Any) -> str:
    """How the body is compressed; "" for not at all. ModelError for what was not asked for."""
    named = str(headers.get("content-encoding", "")).strip().lower()
    if named in ("", "identity"):
        return ""
    if named in ("gzip", "x-gzip"):
        return "gzip"
    raise ModelError("server", f"the answer is compressed as {named[:20]!r}, not as gzip")


class _Body:
    """The bytes of one answer so far."""

    def __init__(self, encoding: str, *, stream: bool) -> None:
        self._most = MOST_STREAMED if stream else MOST
        self._gzip = zlib.decompressobj(_GZIP) if encoding else None
        self._stream = stream
        self._size = 0
        self._event = 0  # bytes since the last empty line
        self._end = b""

    def expect(self, length: str) -> None:
        """ModelError if the header says that more will come than may."""
        if length.isdecimal() and (len(length) > 18 or int(length) > self._most):
            raise _too_large(self._most)

    def take(self, chunk: bytes) -> Iterator[bytes]:
        """What the library reads of `chunk`; ModelError as soon as it is too much."""
        for piece in self._pieces(chunk):
            self._size += len(piece)
            if self._size > self._most:
                raise _too_large(self._most)
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
        if self._event > MOST:
            raise _too_large(MOST)


def _too_large(most: int) -> ModelError:
    return ModelError("server", f"the answer has more than {most >> 20} MiB")


def _bounded(stream: Any, body: _Body) -> Any:
    """`stream` with `body` between, of the kind that the client's library insists on."""
    kinds = type(stream).__mro__
    return _stream_type(next(each for each in kinds if each.__name__ == "AsyncByteStream"))(
        stream, body
    )


@functools.cache
def _stream_type(base: Any) -> Any:
    class Bounded(base):  # type: ignore[misc]
        def __init__(self, stream: Any, body: _Body) -> None:
            self._stream, self._body = stream, body

        async def __aiter__(self) -> AsyncIterator[bytes]:
            async for chunk in self._stream:
                for piece in self._body.take(chunk):
                    yield piece

        async def aclose(self) -> None:
            await self._stream.aclose()

    return Bounded
