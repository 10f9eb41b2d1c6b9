"""`RequestPipeline`: sends one request at a time to a server and handles abandoned ones."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeAlias

from repl_env.client.connection.handshake import SessionHandshake
from repl_env.client.connection.server_address import ServerAccess
from repl_env.client.connection.timeouts import Timeouts
from repl_env.client.protocol import refusal_errors
from repl_env.client.protocol.client_frames import RefusalFrame, ReplyFrame, RequestFrame
from repl_env.client.session.request_builder import asks_itself
from repl_env.errors import ReplyTimeout, ServerError

# Called with "stdout" or "stderr" and a piece of text; may be asynchronous.
Hear: TypeAlias = Callable[[str, str], object]


class RequestPipeline(ABC):
    """A session from the client's side. Callers wait for their turn.

    Attributes:
        named: whether the server speaks `repl-env.v1`.
        told: the server's handshake; None without one.
    """

    named: ClassVar[bool]
    told: SessionHandshake | None = None

    def __init__(self, access: ServerAccess, patience: Timeouts) -> None:
        self._access = access
        self._patience = patience
        self._turn = asyncio.Lock()
        self._gone: str | None = None
        self._asker: asyncio.Task[Any] | None = None  # the caller whose turn it is
        self._telling = False  # the result of `hear` is awaited
        self._left: asyncio.Task[None] | None = None
        self._keeper = asyncio.create_task(self._keep_or_end())

    @property
    def lost(self) -> bool:
        """Whether the session is known to be gone."""
        return self._gone is not None

    async def ask(self, request: RequestFrame, hear: Hear | None = None) -> Mapping[str, Any]:
        """Return the data of the reply to `request`; `hear` receives the output of a running step.

        Raises:
            SessionLost: the session is gone.
            ReplyTimeout: `Timeouts.message_s` has passed.
            TooLarge: the request, or the reply.
            RuntimeError: `hear` made a request, which would wait for itself.
            REPLError: a refusal; see `repl_env.client.protocol.refusal_errors`.
        """
        frame = self._frame(request)
        if self._telling and self._asker is asyncio.current_task():
            raise asks_itself()
        try:
            async with asyncio.timeout(self._patience.message_s) as limit:
                await self._turn.acquire()
                said = await self._exchange_or_leave(frame, request, hear)
        except TimeoutError:
            if not limit.expired():
                raise
            raise ReplyTimeout(f"no reply within {self._patience.message_s:g} s") from None
        if isinstance(said, RefusalFrame):
            raise refusal_errors.error_of_refusal(said, self._access.secrets)
        return said.data

    async def _exchange_or_leave(
        self, frame: bytes, request: RequestFrame, hear: Hear | None
    ) -> ReplyFrame | RefusalFrame:
        """Have `request` answered, and pass the turn on."""
        self._asker, self._telling = asyncio.current_task(), False
        try:
            said = await self._exchange(frame, request, hear)
        except BaseException as error:
            if isinstance(error, ServerError) and not self._telling:
                self._turn.release()
            else:  # the caller is cancelled, or `hear` raised: the server works on
                self._left = asyncio.create_task(self._leave(request))
                # A separate task, as this one may be cancelled before it begins.
                self._left.add_done_callback(lambda _: self._turn.release())
            raise
        finally:
            self._asker = None
        self._turn.release()
        return said

    async def close(self) -> None:
        """End the session, on the server too if it can be reached. Safe to call twice."""
        self._gone = self._gone or "the client closed it"
        self._keeper.cancel()
        if self._left is not None:
            self._left.cancel()
        await self._end()

    async def _keep_or_end(self) -> None:
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
        self, frame: bytes, request: RequestFrame, hear: Hear | None
    ) -> ReplyFrame | RefusalFrame:
        """Send `frame` and return the server's reply; ServerError without one."""

    @abstractmethod
    async def _leave(self, request: RequestFrame) -> None:
        """Make sure that the reply to `request` is not taken for that to the next one."""

    @abstractmethod
    async def _keep(self) -> None:
        """Maintain the session between requests."""

    @abstractmethod
    async def _end(self) -> None:
        """Tell the server that the session can end, and close the socket.

        No effect if done before.
        """
