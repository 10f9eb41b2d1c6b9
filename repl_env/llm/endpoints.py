"""Common parts of endpoints: limits on responses, retries, checked arguments, kept clients."""

from __future__ import annotations

import asyncio
import functools
import random
import threading
import weakref
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

from repl_env.common.values import at_least, of_kind
from repl_env.errors import ModelError
from repl_env.llm.base import Completion, ModelUsage
from repl_sandbox.types import check_seconds

# One client per event loop: connections belong to the loop that opened them, and end with it.

Client = TypeVar("Client")

# Tasks that close clients; a loop itself keeps no reference to its tasks.
_closing: set[asyncio.Task[None]] = set()

# Seconds for another loop to close its client; a stuck loop must not block this one.
_PATIENCE = 5.0


@dataclass(frozen=True, slots=True)
class _Open(Generic[Client]):
    """A client, and the generator that closes it when its loop ends."""

    client: Client
    end: AsyncGenerator[None]

    async def close(self) -> None:
        if not self.end.ag_running:  # type: ignore[attr-defined] # its loop ends, and does it
            await self.end.aclose()

    def forget(self) -> None:
        """Close the client of a closed loop, where its connections have ended: nothing waits."""
        with suppress(Exception):  # a library may insist on its loop, and complains later
            self.end.aclose().send(None)


class ClientCache(Generic[Client]):
    """The clients of one model.

    A client is closed before its loop ends, if the loop ends as under `asyncio.run`
    (`loop.shutdown_asyncgens`): afterwards nothing of it could be awaited.

    Args:
        make: returns a new client, called in the client's loop.
        shut: closes a client, awaited in the client's loop.
    """

    def __init__(
        self, make: Callable[[], Client], shut: Callable[[Client], Awaitable[None]]
    ) -> None:
        self._make = make
        self._shut = shut
        self._lock = threading.Lock()
        self._by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, _Open[Client]]
        self._by_loop = WeakKeyDictionary()
        # A model that nobody closed is collected with its clients, which would complain. So the
        # finalizer holds them.
        weakref.finalize(self, _close_left, self._by_loop).atexit = False

    def here(self) -> Client:
        """Return the client of the running loop, made on first use."""
        loop = asyncio.get_running_loop()
        with self._lock:
            found = self._by_loop.get(loop)
            if found is None:
                self._drop_closed()
                client = self._make()
                found = self._by_loop[loop] = _Open(client, _closing_client(self._shut, client))
            return found.client

    async def close(self) -> None:
        """Close all clients; later uses make new ones."""
        with self._lock:
            known = list(self._by_loop.items())
            self._by_loop.clear()
        here = asyncio.get_running_loop()
        elsewhere = [
            asyncio.wrap_future(asyncio.run_coroutine_threadsafe(each.close(), loop))
            for loop, each in known
            if loop is not here and loop.is_running()
        ]
        for loop, each in known:
            if loop is here:
                await each.close()
            elif loop.is_closed():
                each.forget()
        if elsewhere:
            await asyncio.wait(elsewhere, timeout=_PATIENCE)

    def _drop_closed(self) -> None:
        for loop in [loop for loop in self._by_loop if loop.is_closed()]:
            self._by_loop.pop(loop).forget()


def _close_left(by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, _Open[Any]]) -> None:
    """Close the clients of a model that was collected, each in its loop."""
    for loop, each in list(by_loop.items()):
        if loop.is_closed():
            each.forget()
        else:
            with suppress(RuntimeError):  # the loop is closed meanwhile
                loop.call_soon_threadsafe(_begin, loop, each)


def _begin(loop: asyncio.AbstractEventLoop, left: _Open[Any]) -> None:
    task = loop.create_task(left.close())
    _closing.add(task)
    task.add_done_callback(_closing.discard)


def _closing_client(
    shut: Callable[[Client], Awaitable[None]], client: Client
) -> AsyncGenerator[None]:
    """Start a generator in the running loop, which closes the generator when the loop ends."""

    async def context() -> AsyncGenerator[None]:
        try:
            yield
        finally:
            await shut(client)

    end = context()
    with suppress(StopIteration):  # suspended at the yield, so no wait was needed
        end.__anext__().send(None)
    return end


# Arguments that the models behind endpoints share, checked when a model is made.


def check_arguments(
    *,
    model: Any,
    base_url: Any,
    key: Any,
    headers: Any,
    timeout: Any,
    max_retries: Any,
    key_name: str = "api_key",
) -> None:
    """Check the arguments.

    Raises:
        TypeError, ValueError: naming the argument, without a key, a header or a login in it.
    """
    of_kind(model, str, "model")
    if not model:
        raise ValueError("model must not be empty")
    if base_url is not None:
        _check_url(base_url)
    if key is not None:
        of_kind(key, str, key_name)
    if not isinstance(headers, Mapping):
        raise TypeError(f"headers must be a mapping, not {type(headers).__name__}")
    for name, value in headers.items():
        of_kind(name, str, "headers: a name")
        of_kind(value, str, f"headers: {name}")
    check_seconds(timeout, "timeout")
    at_least(max_retries, 0, "max_retries")


def _check_url(value: object) -> None:
    of_kind(value, str, "base_url")
    try:
        parts = urlsplit(str(value))
    except ValueError:  # its text may repeat a login
        raise ValueError("base_url is no URL") from None
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise ValueError("base_url must begin with http:// or https:// and name a host")


# Limits on responses of endpoints, applied to the received and the decompressed bytes.
#
# The libraries read a whole answer, and a whole event of a stream, into memory before they return
# it. Their HTTP clients call a hook after the headers, and that wraps the body's stream.

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
    return _stream_type(next(kind for kind in kinds if kind.__name__ == "AsyncByteStream"))(
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


# Retries of requests, the same for every library.

# The waits of the openai SDK.
_FIRST_WAIT, _LONGEST_WAIT = 0.5, 8.0  # seconds, doubled each time
_LONGEST_ASKED_FOR = 120.0  # an endpoint that asks for more than this is down


async def with_retries(attempt: Callable[[], Awaitable[Completion]], retries: int) -> Completion:
    """Return the result of `attempt`, repeated up to `retries` times.

    The pause is what the endpoint asked for, else increasing, with a random part, so that calls
    that failed together do not return together. The usage is that of all attempts which the
    endpoint counted.

    Raises:
        ModelError: of the last attempt, or one that waiting does not help.
    """
    spent: ModelUsage | None = None
    for number in range(retries + 1):
        try:
            completion = await attempt()
        except ModelError as error:
            error.usage = spent = _sum(spent, error.usage)
            asked_for = error.retry_after or 0.0
            if number == retries or not error.retryable or asked_for > _LONGEST_ASKED_FOR:
                raise
        else:
            usage = _sum(spent, completion.usage) or completion.usage
            return replace(completion, usage=usage)
        wait = min(_FIRST_WAIT * 2**number, _LONGEST_WAIT) * random.uniform(0.75, 1.0)
        await asyncio.sleep(asked_for or wait)
    raise AssertionError("the last attempt returns or raises")


def _sum(spent: ModelUsage | None, usage: ModelUsage | None) -> ModelUsage | None:
    """Return the usage of several attempts; a count that the last one lacks stays unknown."""
    if spent is None or usage is None:
        return usage or spent
    tokens_in, tokens_out, usd = usage.input_tokens, usage.output_tokens, usage.usd
    return ModelUsage(
        None if tokens_in is None else tokens_in + (spent.input_tokens or 0),
        None if tokens_out is None else tokens_out + (spent.output_tokens or 0),
        None if usd is None else usd + (spent.usd or 0),
    )
