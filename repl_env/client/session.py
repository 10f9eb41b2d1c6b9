"""A session on a server: one that outlives its sockets (`repl-env.v1`), and OpenEnv's plain one."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from inspect import isawaitable
from typing import TYPE_CHECKING, Any

from repl_env.client import protocol
from repl_env.client.address import ServerAccess, Timeouts, pause
from repl_env.client.connection import (
    ConnectionDropped,
    OutputCallback,
    ReconnectingSocket,
    RequestPipeline,
    SessionHandshake,
    WebSocketClient,
    perform_handshake,
)
from repl_env.client.protocol import (
    PLAIN,
    REPLIES,
    OutputFrame,
    RefusalFrame,
    ReplyFrame,
    RequestFrame,
)
from repl_env.client.requests import LATEST, UploadBody, register_secrets, reset_data
from repl_env.errors import (
    CLOSED,
    BadReply,
    NotReset,
    NotSupported,
    REPLError,
    ReplyTimeout,
    ServerError,
    ServerUnavailable,
    SessionLost,
    TooLarge,
)

if TYPE_CHECKING:
    from repl_env.client.nodes import Placement
    from repl_env.client.uploads import OnUpload
    from repl_env.episode.call_options import ResetOptions


# `PlainSession`: a session on a server that only speaks OpenEnv's frames. It ends with its
# socket.
#
# There are no ids: replies arrive in the order of the requests. So the reply to an abandoned
# request is read before the next one is sent.


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
        received = protocol.read_frame(await self._socket.receive())
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
        kind, message = protocol.CLOSES.get(dropped.code, (SessionLost, self._lost_reason))
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


# `ResumableSession`: a session on a server that speaks `repl-env.v1`; it outlives its sockets.
#
# When the socket is lost, another one resumes the session by its token, within the time that the
# server keeps it, and the unanswered request is sent again with its id: the server runs it once.

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

    def _read(self, message: str | bytes, request: RequestFrame) -> protocol.Frame | None:
        """Return the meaning of a message for `request`; None if it concerns another request."""
        try:
            received = protocol.read_frame(message)
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
            protocol.read_frame(await socket.receive()), request, cancel, same_socket
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
    received: protocol.Frame, abandoned: RequestFrame, cancel: RequestFrame, same_socket: bool
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


# `SessionClient`: the current session of a client on a server, in one event loop.


class SessionClient:
    """The base of a client from its first request on; reusable after a close.

    `access`: of the server that has the session; with a `placement`, which chooses a server for
    each session, of none before the first session.
    """

    def __init__(
        self, access: ServerAccess, timeouts: Timeouts, placement: Placement | None = None
    ) -> None:
        self.access = access
        self._timeouts = timeouts
        self._placement = placement
        self._pipeline: RequestPipeline | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._open_lock = asyncio.Lock()  # of that loop
        self._loop_ended = False  # the previous session went with its loop
        self._closed = False  # by the caller, after the previous session
        self._uploaded: set[str] = set()

    @property
    def condition(self) -> str:
        """A word for a repr."""
        return "closed" if self._pipeline is None else "lost" if self._pipeline.lost else "open"

    @property
    def session_id(self) -> str | None:
        """The session's name in the server's logs, if the server reported one."""
        handshake = None if self._pipeline is None else self._pipeline.handshake
        return None if handshake is None else handshake.session_id

    async def ensure_open(self, options: ResetOptions | None = None) -> RequestPipeline:
        """Return the session, or a new one for the reset `options` if there is none."""
        self._check_loop()
        async with self._open_lock:
            if self._pipeline is not None and self._pipeline.lost:
                lost_pipeline, self._pipeline = self._pipeline, None
                await lost_pipeline.close()
            if self._pipeline is None:
                self._pipeline = await self._open(options)
                self._loop_ended = self._closed = False
            return self._pipeline

    async def _open(self, options: ResetOptions | None) -> RequestPipeline:
        if self._placement is None:
            return await open_session(self.access, self._timeouts)
        self.access, pipeline = await self._placement.open(self._timeouts, options)
        return pipeline

    def require_pipeline(self) -> RequestPipeline:
        """Return the session; NotReset if there is none, since a step begins none."""
        self._check_loop()
        if self._loop_ended:
            raise SessionLost("the event loop of its connection has ended; keep to one loop")
        if self._pipeline is None:
            raise NotReset(CLOSED) if self._closed else NotReset
        return self._pipeline

    async def ask(
        self, request: RequestFrame, on_output: OutputCallback | None = None
    ) -> Mapping[str, Any]:
        """Return the data of the reply to `request`, in the current session."""
        pipeline = self.require_pipeline()
        if not pipeline.native and request.type not in PLAIN:
            raise NotSupported(f"this server knows OpenEnv's requests alone, no {request.type!r}")
        return await pipeline.ask(request, on_output)

    async def reset(self, options: ResetOptions, on_upload: OnUpload | None) -> Mapping[str, Any]:
        """Return the data of the reply to a reset, in the current session or in a new one."""
        register_secrets(options, self.access.secrets)
        pipeline = await self.ensure_open(options)
        data, bodies = await reset_data(options, native=pipeline.native)
        try:
            return await self._reset(pipeline, data, bodies, on_upload)
        except (SessionLost, ServerUnavailable) as error:
            if self._pipeline is not pipeline:  # another user of this client closed it meanwhile
                raise
            is_stopping = error.code == "DRAINING" or self._placement is not None
            if isinstance(error, ServerUnavailable) and not is_stopping:
                raise
            # An episode needs nothing of the previous session, which is gone or about to be closed.
            await self._drop(pipeline)
            return await self._reset(await self.ensure_open(options), data, bodies, on_upload)

    async def new_sibling(self, token: str) -> SessionClient:
        """Return another client with the session that `token` names, kept as long as this one."""

        handshake = None if self._pipeline is None else self._pipeline.handshake
        grace_s = 0.0 if handshake is None else handshake.grace_s
        other = SessionClient(self.access, self._timeouts)
        other._check_loop()
        other._pipeline = await resume_session(self.access, self._timeouts, token, grace_s)
        return other

    async def close(self) -> None:
        """End the session. Safe to call twice."""
        LATEST.forget(lambda body: body.sha256 in self._uploaded)
        self._uploaded.clear()
        self._check_loop()
        self._loop_ended, self._closed = False, True
        async with self._open_lock:
            pipeline, self._pipeline = self._pipeline, None
            if pipeline is not None:
                await pipeline.close()

    async def _drop(self, pipeline: RequestPipeline) -> None:
        async with self._open_lock:
            if self._pipeline is pipeline:
                self._pipeline = None
                await pipeline.close()

    async def _reset(
        self,
        pipeline: RequestPipeline,
        data: Mapping[str, Any],
        bodies: list[UploadBody],
        on_upload: OnUpload | None,
    ) -> Mapping[str, Any]:
        from repl_env.client.uploads import upload

        handshake = pipeline.handshake
        _check_sizes(bodies, None if handshake is None else handshake.context_bytes)
        for may_retry in (True, False):
            if bodies:
                self._uploaded.update(body.sha256 for body in bodies)
                max_chunk = None if handshake is None else handshake.message_bytes
                await upload(bodies, self.access, max_chunk=max_chunk, on_upload=on_upload)
            try:
                return await pipeline.ask(RequestFrame("reset", data))
            except ServerError as error:
                # An unused context may have to make room first.
                if error.code != "UNKNOWN_CONTEXT" or not may_retry:
                    raise
        raise AssertionError("the second attempt returns or raises")

    def _check_loop(self) -> None:
        loop = asyncio.get_running_loop()
        if loop is self._loop:
            return
        if self._loop is not None and self._loop.is_closed():
            self._loop_ended, self._pipeline = self._loop_ended or self._pipeline is not None, None
        elif self._pipeline is not None or self._open_lock.locked():
            raise REPLError(
                "this client has a connection in another event loop, or another process: use it "
                "in one alone, or `REPLEnv(...).sync()` in plain code"
            )
        self._loop, self._open_lock = loop, asyncio.Lock()


def _check_sizes(bodies: list[UploadBody], max_bytes: int | None) -> None:
    for body in bodies:
        if max_bytes is not None and body.size > max_bytes:
            raise TooLarge(f"{body.name} has {body.size:,} bytes; the server takes {max_bytes:,}")


# Opens a session at an address, in the protocol that the server speaks.

# Seconds for which opening a session is repeated. A proxy before several servers, of which one has
# ended, may need a failed attempt to choose another one.
_REPEAT_S = 1.0


async def open_session(access: ServerAccess, timeouts: Timeouts) -> RequestPipeline:
    """Return a new session.

    Attempts without a connection, or refused by a server that is stopping, are repeated for a
    second: they opened no session.

    Raises:
        ServerUnavailable, AuthenticationFailed, CapacityReached, QuotaExceeded: the server cannot
            be reached, or grants no session.
    """
    return await _open_within(_REPEAT_S, access, timeouts, None)


async def resume_session(
    access: ServerAccess, timeouts: Timeouts, token: str, within_s: float
) -> RequestPipeline:
    """Return the session that `token` names, which the server keeps for `within_s` seconds.

    Raises:
        ServerUnavailable: the server could not be reached within that time.
        SessionLost: the token has no session.
        ServerError: as `open_session`.
    """
    return await _open_within(within_s, access, timeouts, token)


async def _open_within(
    within_s: float, access: ServerAccess, timeouts: Timeouts, token: str | None
) -> RequestPipeline:
    now = asyncio.get_running_loop().time
    until, attempt = now() + within_s, 0
    while True:
        connected = False
        try:
            socket = await WebSocketClient.open(access, timeouts)
            connected = True
            return await _open_on(socket, access, timeouts, token)
        except ServerUnavailable as error:
            if connected and token is None and error.code != "DRAINING":
                raise  # the server may have opened a session
            attempt += 1
            pause_s = max(pause(attempt), error.retry_after or 0.0)
            if now() + pause_s > until:
                raise
        await asyncio.sleep(pause_s)


async def _open_on(
    socket: WebSocketClient, access: ServerAccess, timeouts: Timeouts, token: str | None
) -> RequestPipeline:
    try:
        if socket.native:
            handshake = await perform_handshake(access, timeouts, socket, token)
            return ResumableSession(access, timeouts, socket, handshake)
        if token is not None:
            raise NotSupported("this server has no sessions that could be resumed")
        return PlainSession(access, timeouts, socket)
    except BaseException:
        await socket.close_without_waiting()
        raise
