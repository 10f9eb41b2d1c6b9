"""`ResumableSession`: a session on a server that speaks `repl-env.v1`; it outlives its sockets.

When the socket is lost, another one resumes the session by its token, within the time that the
server keeps it, and the unanswered request is sent again with its id: the server runs it once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from inspect import isawaitable

from repl_env.client.connection.handshake import SessionHandshake
from repl_env.client.connection.reconnecting_socket import ReconnectingSocket
from repl_env.client.connection.server_address import ServerAccess
from repl_env.client.connection.timeouts import Timeouts
from repl_env.client.connection.websocket_client import ConnectionDropped, WebSocketClient
from repl_env.client.protocol import client_frames
from repl_env.client.protocol.client_frames import (
    REPLIES,
    OutputFrame,
    RefusalFrame,
    ReplyFrame,
    RequestFrame,
)
from repl_env.client.session.request_pipeline import OutputCallback, RequestPipeline
from repl_env.errors import BadReply, ReplyTimeout, ServerError, TooLarge

# Seconds beyond a step's own limit until its reply is overdue: for the work around the code, and a
# question to a model. An overdue step is no error: the server is asked whether it still works on
# it.
MARGIN_S = 30.0
# Attempts to send a request that the server reports as missing, until it counts as lost.
MAX_SENDS = 5
# Seconds that the next request waits for the end of an abandoned one.
ABANDON_TIMEOUT_S = 10.0
# Advice for a message that is too large, by its type.
_REMEDIES = {
    "reset": ". Contexts and files from 1 MiB on are uploaded beside it: join the small ones",
    "follow_up": ". Variables go inside it; contexts and files of a reset are uploaded beside it",
    "step": ". Give data as a context or a file of the reset, which are uploaded",
}


class ResumableSession(RequestPipeline):
    """One session. Between requests a task resumes it, because its grace time runs then too."""

    native = True

    def __init__(
        self,
        access: ServerAccess,
        timeouts: Timeouts,
        socket: WebSocketClient,
        handshake: SessionHandshake,
    ) -> None:
        super().__init__(access, timeouts)
        self._connection = ReconnectingSocket(access, timeouts, socket, handshake)
        # Ids of requests whose replies may come late, or twice.
        self._request_ids: deque[str] = deque(maxlen=32)

    @property
    def handshake(self) -> SessionHandshake:  # type: ignore[override]
        """The server's handshake for the last open or resume."""
        return self._connection.handshake

    @property
    def lost(self) -> bool:
        return self._lost_reason is not None or self._connection.lost_reason is not None

    def _frame(self, request: RequestFrame) -> bytes:
        frame, limit = request.encoded(), self.handshake.message_bytes
        if limit is not None and len(frame) > limit:
            message = (
                f"{request.type}: a message of {len(frame):,} bytes; the server takes {limit:,}"
            )
            raise TooLarge(message + _REMEDIES.get(request.type, ""))
        return frame

    async def _exchange(
        self, frame: bytes, request: RequestFrame, on_output: OutputCallback | None
    ) -> ReplyFrame | RefusalFrame:
        self._request_ids.append(request.id)
        sends = 0
        while True:
            socket = await self._connection.socket()
            # otherwise it works on this request, or has not reached it
            if not sends or self.handshake.running is None:
                sends += 1
            if sends > MAX_SENDS:
                raise ReplyTimeout(f"the server lost the request {MAX_SENDS} times")
            try:
                received = await self._answer(socket, frame, request, on_output)
                self._connection.mark_working()
                return received
            except ConnectionDropped as dropped:
                self._connection.handle_drop(dropped)
            except _Overdue:
                self._connection.drop_socket()

    async def _answer(
        self,
        socket: WebSocketClient,
        frame: bytes,
        request: RequestFrame,
        on_output: OutputCallback | None,
    ) -> ReplyFrame | RefusalFrame:
        """Send `frame` and wait for the reply.

        ConnectionDropped, or _Overdue if the server is silent.
        """
        try:
            await socket.send(frame)
        except ConnectionDropped:
            pass  # messages from before the close can still be read
        expected_s = (request.timeout_s or self.handshake.timeout_s) + MARGIN_S
        while True:
            try:
                async with asyncio.timeout(expected_s):
                    message = await socket.receive()
            except TimeoutError:
                raise _Overdue from None
            received = self._read(message, request)
            if isinstance(received, OutputFrame):
                self._in_callback = True  # stays so if `on_output` raises
                await _deliver_output(received, on_output)
                self._in_callback = False
            elif received is not None:
                return received

    def _read(self, message: str | bytes, request: RequestFrame) -> client_frames.Frame | None:
        """Return the meaning of a message for `request`; None if it concerns another request."""
        try:
            received = client_frames.read(message)
            if received.id is not None and received.id != request.id:
                if received.id not in self._request_ids:
                    raise BadReply("the server answered a request that was never made")
                return None
            if isinstance(received, ReplyFrame) and (
                received.type != REPLIES[request.type] or received.id is None
            ):
                raise BadReply(f"the server answered {request.type!r} with {received.type!r}")
        except BadReply:
            self._connection.drop_socket()
            raise
        return received

    async def _drain_abandoned(self, request: RequestFrame) -> None:
        """Have the server end `request`, and read its reply.

        No message may stay unread between requests: a socket that is not read answers no pings
        either.
        """
        original_socket = self._connection.current
        try:
            async with asyncio.timeout(ABANDON_TIMEOUT_S):
                while True:
                    socket = await self._connection.socket()
                    try:
                        return await self._cancel_request(
                            request, socket, socket is original_socket
                        )
                    except ConnectionDropped as dropped:
                        self._connection.handle_drop(dropped)
        except (ServerError, TimeoutError):
            # The next request resumes the session, and waits in the server's queue.
            self._connection.drop_socket()

    async def _cancel_request(
        self, request: RequestFrame, socket: WebSocketClient, same_socket: bool
    ) -> None:
        """End the request on `socket`, which gets no reply if the request was sent on another
        one.
        """
        cancel = RequestFrame("cancel", {"request": request.id})
        if request.type == "step":
            self._request_ids.append(cancel.id)
            await socket.send(cancel.encoded())
        elif not same_socket:
            return
        while not _is_over(
            client_frames.read(await socket.receive()), request, cancel, same_socket
        ):
            pass

    async def _keep(self) -> None:
        """Resume the session when its socket is lost, also between requests."""
        while self._connection.lost_reason is None:
            if self._connection.current is not None:
                await self._connection.current.closed()
            async with self._turn:
                try:
                    await self._connection.socket()
                except ServerError:
                    continue  # the next caller gets the reason from the lost connection

    async def _end(self) -> None:
        await self._connection.close()


class _Overdue(Exception):
    """The reply is overdue."""


def _is_over(
    received: client_frames.Frame, abandoned: RequestFrame, cancel: RequestFrame, same_socket: bool
) -> bool:
    """Return whether an abandoned request produces no further messages, given the received ones.

    `same_socket`: this is the socket that the request was sent on.
    """
    if isinstance(received, OutputFrame):
        return False
    if received.id == cancel.id:
        return (
            not same_socket
            or isinstance(received, RefusalFrame)
            or not received.data.get("running")
        )
    return received.id == abandoned.id


async def _deliver_output(output: OutputFrame, on_output: OutputCallback | None) -> None:
    """Pass output to `on_output`, with a note on output that the server had to drop."""
    if on_output is None:
        return
    left_out = f"\n... ({output.dropped:,} characters left out)\n" if output.dropped else ""
    for text in filter(None, (output.text, left_out)):
        returned = on_output(output.stream, text)
        if isawaitable(returned):
            await returned
