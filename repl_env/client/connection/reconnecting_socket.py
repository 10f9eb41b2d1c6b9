"""`ReconnectingSocket`: a connection to a session that is reopened when it is lost."""

from __future__ import annotations

import asyncio

from repl_env.client.connection.handshake import SessionHandshake, perform_handshake
from repl_env.client.connection.server_address import ServerAccess
from repl_env.client.connection.timeouts import LONGEST_PAUSE_S, Timeouts, pause
from repl_env.client.connection.websocket_client import ConnectionDropped, WebSocketClient
from repl_env.client.protocol import refusal_errors
from repl_env.errors import AuthenticationFailed, BadReply, ServerError, SessionLost, TooLarge

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
        if dropped.code in refusal_errors.CLOSES:
            kind, self.lost_reason = refusal_errors.CLOSES[dropped.code]
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
        until, attempt = now() + self.handshake.grace_s, 0
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
                    self.lost_reason = f"no way back to it within {self.handshake.grace_s:g} s"
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
