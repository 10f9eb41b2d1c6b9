"""`ReconnectingSocket`: a connection to a session, reopened when it is lost, and its requests."""

from __future__ import annotations

import asyncio
import logging
import math
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, MutableMapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias
from urllib.parse import urlsplit

from websockets.asyncio.client import ClientConnection, connect
from websockets.datastructures import Headers
from websockets.exceptions import (
    ConnectionClosed,
    InvalidHandshake,
    InvalidProxy,
    InvalidStatus,
    InvalidURI,
)
from websockets.frames import CloseCode
from websockets.protocol import State
from websockets.typing import Subprotocol

from repl_env.client import protocol
from repl_env.client.address import LONGEST_PAUSE_S, ServerAccess, Timeouts, pause
from repl_env.client.protocol import SUBPROTOCOL, RefusalFrame, ReplyFrame, RequestFrame
from repl_env.client.requests import reentrant_request_error
from repl_env.errors import (
    AuthenticationFailed,
    BadReply,
    NotSupported,
    REPLError,
    ReplyTimeout,
    ServerError,
    ServerUnavailable,
    SessionLost,
    TooLarge,
)

# WebSocket connections to a server; errors contain no secrets.

# Bytes of pending pongs; a server that reads has none.
_MAX_PENDING_PONGS = 1 << 20
# The answer to a ping waits behind the data being sent, which may be megabytes on a slow line.
_PONG_FACTOR = 3


async def connection_to(
    access: ServerAccess, timeouts: Timeouts, close_s: float
) -> ClientConnection:
    """Return an open connection; a server has `close_s` seconds to answer its close.

    Raises:
        ServerUnavailable: the server cannot be reached, or does not speak WebSocket.
        NotSupported: the proxy needs a library that is missing.
        ServerError: the server refuses, with a status and perhaps a code.
    """
    address = access.address
    options: dict[str, Any] = {}
    if address.loopback:
        options["proxy"] = None
    if address.secure and access.tls is not None:
        options["ssl"] = access.tls
    with _failures_to(access):
        return await _Connect(
            address.socket,
            subprotocols=[Subprotocol(SUBPROTOCOL)],
            additional_headers=dict(access.headers),
            compression=None,  # costs both sides more than it saves: bulk data goes by HTTP
            open_timeout=timeouts.connect_s,
            ping_interval=timeouts.ping_s,
            ping_timeout=timeouts.ping_s and _PONG_FACTOR * timeouts.ping_s,
            close_timeout=close_s,
            max_size=timeouts.message_bytes,
            create_connection=_Connection,
            logger=_Quiet(logging.getLogger("repl_env.client"), {}),
            **options,
        )


@contextmanager
def _failures_to(access: ServerAccess) -> Iterator[None]:
    """Translate the library's exceptions into errors of this package."""
    try:
        yield
    except InvalidStatus as error:
        answer = error.response
        headers = {name.lower(): value for name, value in answer.headers.raw_items()}
        body = bytes(answer.body or b"")
        raise protocol.error_of_status(answer.status_code, headers, body, access.secrets) from None
    except ImportError as error:
        raise NotSupported(f"the environment names a proxy: {error}", code="PROXY") from None
    except (OSError, InvalidHandshake, InvalidURI) as error:
        # Without a cause: it may repeat a header, which tracebacks would print.
        message = access.secrets.cut(str(error) or type(error).__name__)
        raise ServerUnavailable(f"no connection to {access.address}: {message}") from None
    except (InvalidProxy, ValueError):
        # Its text is the proxy's URL or a part of it, which may contain a password.
        raise ServerUnavailable("the proxy that the environment names is none") from None


class _Connection(ClientConnection):
    """A connection that breaks when its pongs pile up, with a server that pings without reading."""

    _pending_pongs = 0

    def data_received(self, data: bytes) -> None:
        buffered = self.transport.get_write_buffer_size()
        super().data_received(data)
        answers = self.transport.get_write_buffer_size() - buffered
        self._pending_pongs = max(0, answers) + (self._pending_pongs if buffered else 0)
        if self._pending_pongs > _MAX_PENDING_PONGS:
            self.transport.abort()


class _Connect(connect):
    """Follows redirects within the origin only, with the headers meant for it."""

    def process_redirect(self, exc: Exception) -> Exception | str:
        if isinstance(exc, InvalidStatus) and _elsewhere(self.uri, exc.response.headers):
            return exc
        return super().process_redirect(exc)


def _elsewhere(uri: str, headers: Headers) -> bool:
    """Return whether a redirect leads to another origin, or to an unknown one."""
    try:
        (location,) = headers.get_all("Location")
        new = urlsplit(location)
    except ValueError:  # several locations, or not a URL
        return True
    old = urlsplit(uri)
    return bool(new.netloc) and (new.scheme, new.netloc) != (old.scheme, old.netloc)


class _Quiet(logging.LoggerAdapter[logging.Logger]):
    """A logger that is never at DEBUG level, where websockets logs headers, with keys, and
    frames.
    """

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802
        return level > logging.DEBUG and super().isEnabledFor(level)

    def process(
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[Any, MutableMapping[str, Any]]:
        return msg, kwargs


# `WebSocketClient`: one WebSocket with its reads, closes and failures.

# A server that does not answer a close is gone; nothing is lost with the socket.
_CLOSE_S = 2.0


class ConnectionDropped(Exception):
    """The socket is gone. `code` is the server's close code, None without one.

    `sent_too_large`: a message of the client was too large for the server; `received_too_large`:
    one of the server was too large for the client.
    """

    def __init__(self, closed: ConnectionClosed) -> None:
        received, sent = closed.rcvd, closed.sent
        self.code = None if received is None else received.code
        self.reason = "" if received is None else received.reason
        closed_by_server = received is not None and closed.rcvd_then_sent is not False
        self.sent_too_large = self.code == CloseCode.MESSAGE_TOO_BIG and closed_by_server
        self.received_too_large = (
            not closed_by_server and sent is not None and sent.code == CloseCode.MESSAGE_TOO_BIG
        )
        super().__init__(str(closed))


class WebSocketClient:
    """An open WebSocket. Used by one task at a time."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection

    @classmethod
    async def open(cls, access: ServerAccess, timeouts: Timeouts) -> WebSocketClient:
        """Open a socket to the server.

        Raises:
            ServerUnavailable: the server cannot be reached, or does not speak WebSocket.
            NotSupported: the proxy needs a library that is missing.
            ServerError: the server refuses, with a status and perhaps a code.
        """
        return cls(await connection_to(access, timeouts, _CLOSE_S))

    @property
    def native(self) -> bool:
        """Whether the server speaks `repl-env.v1`, whose frames have ids."""
        return self._connection.subprotocol == SUBPROTOCOL

    @property
    def is_open(self) -> bool:
        """Whether the socket is open, as far as this side knows."""
        return self._connection.state is State.OPEN

    async def send(self, frame: bytes) -> None:
        """Send one text frame; ConnectionDropped if the socket is gone."""
        try:
            await self._connection.send(frame, text=True)
        except ConnectionClosed as error:
            raise ConnectionDropped(error) from None

    async def receive(self) -> str | bytes:
        """Return the next message.

        ConnectionDropped once the socket is gone and everything was read.
        """
        try:
            return await self._connection.recv()
        except ConnectionClosed as error:
            raise ConnectionDropped(error) from None

    async def closed(self) -> None:
        """Wait until either side has closed the socket."""
        await self._connection.wait_closed()

    async def close_session(self, *, native: bool = True) -> bool:
        """Tell the server to end its session, close the socket, and return whether the server
        replied.
        """
        request = RequestFrame("close")
        try:
            # With a server that no longer reads, neither would end.
            async with asyncio.timeout(_CLOSE_S):
                await self.send(request.encoded() if native else request.encoded_for_openenv())
                await self._connection.close()
        except (ConnectionDropped, TimeoutError):
            return False
        finally:
            self.abort()
        return self._connection.close_code == CloseCode.NORMAL_CLOSURE

    async def close_without_waiting(self) -> None:
        """Send `close` for a session that the server may still begin, without waiting for the
        answer.

        A server that is not told keeps a session for its grace time.
        """
        try:
            async with asyncio.timeout(_CLOSE_S):
                await self.send(RequestFrame("close").encoded())
        except (ConnectionDropped, TimeoutError):
            self.abort()
        finally:
            self._connection.transport.close()

    def abort(self) -> None:
        """Close at once and drop pending messages."""
        self._connection.transport.abort()


# The handshake on a socket of `repl-env.v1`: the session, and its limits.

# Nobody waits in a queue for longer; servers drop clients after seconds.
HANDSHAKE_TIMEOUT_S = 300.0
# A step's limit if the server reports none: the engine's.
STEP_S = 30.0


@dataclass(frozen=True, slots=True)
class SessionHandshake:
    """A server's description of a session. `running` is the id of the request that it works on.

    A limit is None if the server has none, and `grace_s` is then infinite.
    """

    session_id: str
    token: str = field(repr=False)
    grace_s: float
    running: str | None
    timeout_s: float
    message_bytes: int | None
    context_bytes: int | None

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> SessionHandshake:
        """Parse the reply to `open` or `resume`; BadReply if it is invalid."""
        limits = data.get("limits")
        limits = limits if isinstance(limits, dict) else {}
        running = data.get("running")
        return cls(
            protocol.reply_field(data, "session_id", str),
            protocol.reply_field(data, "token", str),
            _grace(data),
            running if isinstance(running, str) else None,
            _number(limits, "timeout_s") or STEP_S,
            _count(limits, "message_bytes"),
            _count(limits, "context_bytes"),
        )


def _grace(data: Mapping[str, Any]) -> float:
    """Return the seconds that the session outlives its socket.

    Null means forever, as JSON has no inf.
    """
    if data.get("grace_s", 0.0) is None:
        return math.inf
    return _number(data, "grace_s") or 0.0


def _number(data: Mapping[str, Any], name: str) -> float | None:
    return protocol.number_or_none(data.get(name)) or None


def _count(data: Mapping[str, Any], name: str) -> int | None:
    number = _number(data, name)
    return None if number is None else int(number)


async def perform_handshake(
    access: ServerAccess, timeouts: Timeouts, socket: WebSocketClient, token: str | None = None
) -> SessionHandshake:
    """Request a session on a new socket: a new one, or the one that `token` names.

    Raises:
        SessionLost: the token has no session.
        CapacityReached: no session became free.
        ServerUnavailable: the socket was closed instead, or nothing arrived.
        ServerError: another refusal.
    """
    request = (
        RequestFrame("open", {}) if token is None else RequestFrame("resume", {"token": token})
    )
    most_s = timeouts.message_s or HANDSHAKE_TIMEOUT_S
    try:
        async with asyncio.timeout(most_s):
            received = await _answer(socket, request)
    except ConnectionDropped as dropped:
        otherwise = (ServerUnavailable, f"the server closed the socket: {dropped}")
        kind, message = protocol.CLOSES.get(dropped.code, otherwise)
        raise kind(access.secrets.cut(message)) from None
    except TimeoutError:
        raise ServerUnavailable(f"the server gave no session within {most_s:g} s") from None
    if isinstance(received, RefusalFrame):
        raise _session_error(protocol.error_of_refusal(received, access.secrets))
    if not isinstance(received, ReplyFrame) or received.type != "session":
        raise BadReply("the server did not say which session the socket has")
    return SessionHandshake.of(received.data)


def _session_error(error: REPLError) -> ServerError:
    """Return the error for a refused session: never one about an episode."""
    if isinstance(error, ServerError):
        return error
    return BadReply(f"the server refuses a session as if it were a request in one: {error}")


async def _answer(socket: WebSocketClient, request: RequestFrame) -> protocol.Frame:
    try:
        await socket.send(request.encoded())
    except ConnectionDropped:
        pass  # a refusal that was sent before the socket closed can still be read
    return protocol.read_frame(await socket.receive())


# `ReconnectingSocket`: a connection to a session that is reopened when it is lost.

# A client that closes without a socket tries for this long to tell the server.
CLOSE_TIMEOUT_S = 2.0


class ReconnectingSocket:
    """Used by one task at a time.

    Attributes:
        handshake: the server's handshake for the last open or resume.
        current: the socket that has the session, None while there is none.
        lost_reason: why the session is lost for good, None while it is not.
    """

    def __init__(
        self,
        access: ServerAccess,
        timeouts: Timeouts,
        socket: WebSocketClient,
        handshake: SessionHandshake,
    ) -> None:
        self._access = access
        self._timeouts = timeouts
        self.handshake = handshake
        self.current: WebSocketClient | None = socket
        self.lost_reason: str | None = None
        self._since = asyncio.get_running_loop().time()
        self._quick_failures = 0

    async def socket(self) -> WebSocketClient:
        """Return a socket that has the session, opening one if necessary.

        Raises:
            SessionLost: the session no longer exists.
            AuthenticationFailed: the server no longer accepts the key.
        """
        if self.current is not None and not self.current.is_open:
            await self._read_close_reason(self.current)
        self._check()
        if self.current is None:
            await asyncio.sleep(self._pause())
            found, self.handshake = await self._resume()
            self._since = asyncio.get_running_loop().time()
            if self.lost_reason is not None:
                found.abort()  # the client was closed meanwhile
            self._check()
            self.current = found
        return self.current

    def mark_working(self) -> None:
        """Record that the socket works: a request was answered on it."""
        self._quick_failures = 0

    def drop_socket(self) -> None:
        """Drop the socket, which is silent or sends invalid data."""
        socket, self.current = self.current, None
        if socket is not None:
            socket.abort()

    def handle_drop(self, dropped: ConnectionDropped) -> None:
        """Handle a lost socket.

        Raises:
            TooLarge: the size of a message was the reason, so that sending it again is useless.
            ServerError: the session is gone with it.
        """
        self.drop_socket()
        if dropped.received_too_large:
            limit = self._timeouts.message_bytes
            raise TooLarge(f"the reply is over {limit:,} bytes, which is max_message_size_mb")
        if dropped.sent_too_large:
            reason = self._access.secrets.cut(dropped.reason)
            raise TooLarge(f"the server takes no message of this size ({reason})")
        if dropped.code in protocol.CLOSES:
            kind, self.lost_reason = protocol.CLOSES[dropped.code]
            raise kind(self.lost_reason)

    async def close(self) -> None:
        """End the session, and tell the server, which would otherwise keep it for its grace
        time.
        """
        close_reason, self.lost_reason = (
            self.lost_reason is not None,
            self.lost_reason or "the client closed it",
        )
        socket, self.current = self.current, None
        notified = socket is not None and await socket.close_session()
        if not notified and not close_reason:
            try:
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    socket, _ = await self._try_resume()
                    await socket.close_session()
            except (ServerError, TimeoutError):
                return

    def _check(self) -> None:
        if self.lost_reason is not None:
            raise SessionLost(self.lost_reason)

    def _pause(self) -> float:
        """Return the seconds before another socket: none, unless sockets break right after
        opening.
        """
        lasted_s = asyncio.get_running_loop().time() - self._since
        self._quick_failures = 1 if lasted_s > LONGEST_PAUSE_S else self._quick_failures + 1
        return min(pause(self._quick_failures - 1), self.handshake.grace_s / 2)

    async def _read_close_reason(self, socket: WebSocketClient) -> None:
        """Learn why a socket was closed that nobody read from."""
        try:
            while True:
                await socket.receive()
        except ConnectionDropped as dropped:
            self.handle_drop(dropped)

    async def _resume(self) -> tuple[WebSocketClient, SessionHandshake]:
        """Return another socket that has the session."""
        now = asyncio.get_running_loop().time
        within_s = self.handshake.grace_s
        if self._timeouts.reconnect_s is not None:
            within_s = min(within_s, self._timeouts.reconnect_s)
        until, attempt = now() + within_s, 0
        while True:
            self._check()
            try:
                return await self._try_resume()
            except (SessionLost, AuthenticationFailed, BadReply) as error:
                self.lost_reason = self.lost_reason or error.message
                raise
            except ServerError as error:
                attempt += 1
                pause_s = max(pause(attempt), error.retry_after or 0.0)
                if now() + pause_s > until:
                    self.lost_reason = f"no way back to it within {within_s:g} s"
                    raise SessionLost(f"{self.lost_reason}: {error.message}") from error
            await asyncio.sleep(pause_s)

    async def _try_resume(self) -> tuple[WebSocketClient, SessionHandshake]:
        socket = await WebSocketClient.open(self._access, self._timeouts)
        try:
            if not socket.native:
                raise SessionLost("another server is at the address, which resumes no sessions")
            handshake = await perform_handshake(
                self._access, self._timeouts, socket, self.handshake.token
            )
            if handshake.session_id != self.handshake.session_id:
                raise SessionLost("the server resumed another session than this one")
            return socket, handshake
        except BaseException:
            socket.abort()
            raise


# `RequestPipeline`: sends one request at a time to a server and handles abandoned ones.

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
            REPLError: a refusal; see `repl_env.client.protocol`.
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
            raise protocol.error_of_refusal(received, self._access.secrets)
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
