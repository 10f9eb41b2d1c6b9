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
from repl_env.client.session.request_pipeline import Hear, RequestPipeline
from repl_env.errors import BadReply, ReplyTimeout, ServerError, TooLarge

# Seconds beyond a step's own limit until its reply is overdue: for the work around the code, and a
# question to a model. An overdue step is no error: the server is asked whether it still works on
# it.
MARGIN_S = 30.0
# Attempts to send a request that the server reports as missing, until it counts as lost.
MOST_SENDS = 5
# Seconds that the next request waits for the end of an abandoned one.
LEAVE_S = 10.0
# Advice for a message that is too large, by its type.
_REMEDIES = {
    "reset": ". Contexts and files from 1 MiB on are uploaded beside it: join the small ones",
    "follow_up": ". Variables go inside it; contexts and files of a reset are uploaded beside it",
    "step": ". Give data as a context or a file of the reset, which are uploaded",
}


class ResumableSession(RequestPipeline):
    """One session. Between requests a task resumes it, because its grace time runs then too."""

    named = True

    def __init__(
        self,
        access: ServerAccess,
        patience: Timeouts,
        socket: WebSocketClient,
        told: SessionHandshake,
    ) -> None:
        super().__init__(access, patience)
        self._line = ReconnectingSocket(access, patience, socket, told)
        # Ids of requests whose replies may come late, or twice.
        self._asked: deque[str] = deque(maxlen=32)

    @property
    def told(self) -> SessionHandshake:  # type: ignore[override]
        """The server's handshake for the last open or resume."""
        return self._line.told

    @property
    def lost(self) -> bool:
        return self._gone is not None or self._line.gone is not None

    def _frame(self, request: RequestFrame) -> bytes:
        frame, limit = request.named(), self.told.message_bytes
        if limit is not None and len(frame) > limit:
            told = f"{request.type}: a message of {len(frame):,} bytes; the server takes {limit:,}"
            raise TooLarge(told + _REMEDIES.get(request.type, ""))
        return frame

    async def _exchange(
        self, frame: bytes, request: RequestFrame, hear: Hear | None
    ) -> ReplyFrame | RefusalFrame:
        self._asked.append(request.id)
        sends = 0
        while True:
            socket = await self._line.socket()
            # otherwise it works on this request, or has not reached it
            if not sends or self.told.running is None:
                sends += 1
            if sends > MOST_SENDS:
                raise ReplyTimeout(f"the server lost the request {MOST_SENDS} times")
            try:
                said = await self._answer(socket, frame, request, hear)
                self._line.answered()
                return said
            except ConnectionDropped as dropped:
                self._line.dropped(dropped)
            except _Overdue:
                self._line.cut()

    async def _answer(
        self, socket: WebSocketClient, frame: bytes, request: RequestFrame, hear: Hear | None
    ) -> ReplyFrame | RefusalFrame:
        """Send `frame` and wait for the reply.

        ConnectionDropped, or _Overdue if the server is silent.
        """
        try:
            await socket.send(frame)
        except ConnectionDropped:
            pass  # messages from before the close can still be read
        expected_s = (request.timeout_s or self.told.timeout_s) + MARGIN_S
        while True:
            try:
                async with asyncio.timeout(expected_s):
                    message = await socket.receive()
            except TimeoutError:
                raise _Overdue from None
            said = self._read(message, request)
            if isinstance(said, OutputFrame):
                self._telling = True  # stays so if `hear` raises
                await _heard(said, hear)
                self._telling = False
            elif said is not None:
                return said

    def _read(self, message: str | bytes, request: RequestFrame) -> client_frames.Frame | None:
        """Return the meaning of a message for `request`; None if it concerns another request."""
        try:
            said = client_frames.read(message)
            if said.id is not None and said.id != request.id:
                if said.id not in self._asked:
                    raise BadReply("the server answered a request that was never made")
                return None
            if isinstance(said, ReplyFrame) and (
                said.type != REPLIES[request.type] or said.id is None
            ):
                raise BadReply(f"the server answered {request.type!r} with {said.type!r}")
        except BadReply:
            self._line.cut()
            raise
        return said

    async def _leave(self, request: RequestFrame) -> None:
        """Have the server end `request`, and read its reply.

        No message may stay unread between requests: a socket that is not read answers no pings
        either.
        """
        sent_on = self._line.present
        try:
            async with asyncio.timeout(LEAVE_S):
                while True:
                    socket = await self._line.socket()
                    try:
                        return await self._call_off(request, socket, socket is sent_on)
                    except ConnectionDropped as dropped:
                        self._line.dropped(dropped)
        except (ServerError, TimeoutError):
            # The next request resumes the session, and waits in the server's queue.
            self._line.cut()

    async def _call_off(self, request: RequestFrame, socket: WebSocketClient, same: bool) -> None:
        """End the request on `socket`, which gets no reply if the request was sent on another
        one.
        """
        cancel = RequestFrame("cancel", {"request": request.id})
        if request.type == "step":
            self._asked.append(cancel.id)
            await socket.send(cancel.named())
        elif not same:
            return
        while not _is_over(client_frames.read(await socket.receive()), request, cancel, same):
            pass

    async def _keep(self) -> None:
        """Resume the session when its socket is lost, also between requests."""
        while self._line.gone is None:
            if self._line.present is not None:
                await self._line.present.closed()
            async with self._turn:
                try:
                    await self._line.socket()
                except ServerError:
                    continue  # the next caller gets the reason from the lost connection

    async def _end(self) -> None:
        await self._line.close()


class _Overdue(Exception):
    """The reply is overdue."""


def _is_over(
    said: client_frames.Frame, left: RequestFrame, cancel: RequestFrame, same: bool
) -> bool:
    """Return whether an abandoned request produces no further messages, given the received ones.

    `same`: this is the socket that the request was sent on.
    """
    if isinstance(said, OutputFrame):
        return False
    if said.id == cancel.id:
        return not same or isinstance(said, RefusalFrame) or not said.data.get("running")
    return said.id == left.id


async def _heard(output: OutputFrame, hear: Hear | None) -> None:
    """Pass output to `hear`, with a note on output that the server dropped for lack of speed."""
    if hear is None:
        return
    left_out = f"\n... ({output.dropped:,} characters left out)\n" if output.dropped else ""
    for text in filter(None, (output.text, left_out)):
        told = hear(output.stream, text)
        if isawaitable(told):
            await told
