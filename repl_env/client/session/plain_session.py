"""`PlainSession`: a session on a server that only speaks OpenEnv's frames. It ends with its socket.

There are no ids: replies arrive in the order of the requests. So the reply to an abandoned request
is read before the next one is sent.
"""

from __future__ import annotations

from repl_env.client.connection.server_address import ServerAccess
from repl_env.client.connection.timeouts import Timeouts
from repl_env.client.connection.websocket_client import ConnectionDropped, WebSocketClient
from repl_env.client.protocol import client_frames, refusal_errors
from repl_env.client.protocol.client_frames import (
    PLAIN,
    REPLIES,
    OutputFrame,
    RefusalFrame,
    ReplyFrame,
    RequestFrame,
)
from repl_env.client.session.request_pipeline import OutputCallback, RequestPipeline
from repl_env.errors import BadReply, SessionLost, TooLarge


class PlainSession(RequestPipeline):
    """One session, for the lifetime of its socket."""

    native = False

    def __init__(self, access: ServerAccess, timeouts: Timeouts, socket: WebSocketClient) -> None:
        super().__init__(access, timeouts)
        self._socket = socket

    def _frame(self, request: RequestFrame) -> bytes:
        assert request.type in PLAIN
        frame, limit = request.encoded_for_openenv(), self._timeouts.message_bytes
        if len(frame) > limit:
            explanation = f"max_message_size_mb is {limit:,} bytes"
            raise TooLarge(f"a message of {len(frame):,} bytes; {explanation}")
        return frame

    async def _exchange(
        self, frame: bytes, request: RequestFrame, on_output: OutputCallback | None
    ) -> ReplyFrame | RefusalFrame:
        if self._lost_reason is not None:
            raise SessionLost(self._lost_reason)
        try:
            await self._socket.send(frame)
        except ConnectionDropped:
            pass  # the reason of the close can still be read: a refusal, at capacity
        try:
            return await self._reply(request)
        except ConnectionDropped as dropped:
            raise self._lost(dropped, len(frame)) from None
        except BadReply as error:
            self._lost_reason = error.message
            self._socket.abort()
            raise

    async def _reply(self, request: RequestFrame) -> ReplyFrame | RefusalFrame:
        received = client_frames.read(await self._socket.receive())
        if isinstance(received, OutputFrame) or (
            isinstance(received, ReplyFrame) and received.type != REPLIES[request.type]
        ):
            raise BadReply(f"the server answered {request.type!r} with something else")
        return received

    def _lost(self, dropped: ConnectionDropped, size: int) -> Exception:
        self._lost_reason = "its connection was lost, and this server resumes none"
        if dropped.received_too_large:
            limit = self._timeouts.message_bytes
            return TooLarge(f"the reply is over {limit:,} bytes, which is max_message_size_mb")
        if dropped.sent_too_large:
            # The server does not report its limit; uvicorn's default is 16 MiB.
            reason = self._access.secrets.cut(dropped.reason) or "uvicorn's own limit is 16 MiB"
            return TooLarge(f"the server takes no message of {size:,} bytes ({reason})")
        kind, message = refusal_errors.CLOSES.get(dropped.code, (SessionLost, self._lost_reason))
        return kind(f"{message} ({self._access.secrets.cut(str(dropped))})")

    async def _drain_abandoned(self, request: RequestFrame) -> None:
        try:
            await self._reply(request)
        except (ConnectionDropped, BadReply) as error:
            self._lost_reason = str(error)

    async def _keep(self) -> None:
        await self._socket.closed()

    async def _end(self) -> None:
        await self._socket.close_session(native=False)
