"""`RequestPipeline`: sends one request at a time to a server and handles abandoned ones."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, ClassVar, TypeAlias

from repl_env.client.connection.handshake import SessionHandshake
from repl_env.client.connection.server_address import ServerAccess
from repl_env.client.connection.timeouts import Timeouts
from repl_env.client.protocol import refusal_errors
from repl_env.client.protocol.client_frames import RefusalFrame, ReplyFrame, RequestFrame
from repl_env.client.session.request_builder import reentrant_request_error
from repl_env.errors import ReplyTimeout, ServerError

# Called with "stdout" or "stderr" and a piece of text; may be asynchronous.
OutputCallback: TypeAlias = Callable[[str, str], object]


class RequestPipeline(ABC):
    """A session from the client's side. Callers wait for their turn.

    Attributes:
        native: whether the server speaks `repl-env.v1`.
        handshake: the server's handshake; None without one.
    """

    native: ClassVar[bool]
    handshake: SessionHandshake | None = None

    def __init__(self, access: ServerAccess, timeouts: Timeouts) -> None:
        self._access = access
        self._timeouts = timeouts
        self._turn = asyncio.Lock()
        self._lost_reason: str | None = None
        self._caller: asyncio.Task[Any] | None = None  # the caller whose turn it is
        self._in_callback = False  # the result of `on_output` is awaited
        self._abandoned: asyncio.Task[None] | None = None
        self._keep_task = asyncio.create_task(self._keep_until_closed())

    @property
    def lost(self) -> bool:
        """Whether the session is known to be gone."""
        return self._lost_reason is not None

    async def ask(
        self, request: RequestFrame, on_output: OutputCallback | None = None
    ) -> Mapping[str, Any]:
        """Return the data of the reply to `request`; `on_output` receives a running step's output.

        Raises:
            SessionLost: the session is gone.
            ReplyTimeout: `Timeouts.message_s` has passed.
            TooLarge: the request, or the reply.
            RuntimeError: `on_output` made a request, which would wait for itself.
            REPLError: a refusal; see `repl_env.client.protocol.refusal_errors`.
        """
        frame = self._frame(request)
        if self._in_callback and self._caller is asyncio.current_task():
            raise reentrant_request_error()
        try:
            async with asyncio.timeout(self._timeouts.message_s) as limit:
                await self._turn.acquire()
                received = await self._exchange_in_turn(frame, request, on_output)
        except TimeoutError:
            if not limit.expired():
                raise
            raise ReplyTimeout(f"no reply within {self._timeouts.message_s:g} s") from None
        if isinstance(received, RefusalFrame):
            raise refusal_errors.error_of_refusal(received, self._access.secrets)
        return received.data

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Hold the session between two requests, for work beside its socket.

        Raises:
            ReplyTimeout: `Timeouts.message_s` has passed, with the time of the block.
            RuntimeError: as `ask`.
        """
        if self._in_callback and self._caller is asyncio.current_task():
            raise reentrant_request_error()
        try:
            async with asyncio.timeout(self._timeouts.message_s) as limit, self._turn:
                yield
        except TimeoutError:
            if not limit.expired():
                raise
            raise ReplyTimeout(f"no reply within {self._timeouts.message_s:g} s") from None

    async def _exchange_in_turn(
        self, frame: bytes, request: RequestFrame, on_output: OutputCallback | None
    ) -> ReplyFrame | RefusalFrame:
        """Have `request` answered, and pass the turn on."""
        self._caller, self._in_callback = asyncio.current_task(), False
        try:
            received = await self._exchange(frame, request, on_output)
        except BaseException as error:
            if isinstance(error, ServerError) and not self._in_callback:
                self._turn.release()
            else:  # the caller is cancelled, or `on_output` raised: the server works on
                self._abandoned = asyncio.create_task(self._drain_abandoned(request))
                # A separate task, as this one may be cancelled before it begins.
                self._abandoned.add_done_callback(lambda _: self._turn.release())
            raise
        finally:
            self._caller = None
        self._turn.release()
        return received

    async def close(self) -> None:
        """End the session, on the server too if it can be reached. Safe to call twice."""
        self._lost_reason = self._lost_reason or "the client closed it"
        self._keep_task.cancel()
        if self._abandoned is not None:
            self._abandoned.cancel()
        await self._end()

    async def _keep_until_closed(self) -> None:
        try:
            await self._keep()
        except asyncio.CancelledError:
            # The loop ends, and perhaps nobody closed the session, of which a server has few.
            await self._end()
            raise

    @abstractmethod
    def _frame(self, request: RequestFrame) -> bytes:
        """Return the encoded `request`; TooLarge if it exceeds the server's limit."""

    @abstractmethod
    async def _exchange(
        self, frame: bytes, request: RequestFrame, on_output: OutputCallback | None
    ) -> ReplyFrame | RefusalFrame:
        """Send `frame` and return the server's reply; ServerError without one."""

    @abstractmethod
    async def _drain_abandoned(self, request: RequestFrame) -> None:
        """Make sure that the reply to `request` is not taken for that to the next one."""

    @abstractmethod
    async def _keep(self) -> None:
        """Maintain the session between requests."""

    @abstractmethod
    async def _end(self) -> None:
        """Tell the server that the session can end, and close the socket.

        No effect if done before.
        """
