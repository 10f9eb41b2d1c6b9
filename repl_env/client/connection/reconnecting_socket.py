"""`ReconnectingSocket`: a connection to a session that is reopened when it is lost."""

from __future__ import annotations

import asyncio

from repl_env.client.connection.handshake import SessionHandshake, shake_hands
from repl_env.client.connection.server_address import ServerAccess
from repl_env.client.connection.timeouts import LONGEST_PAUSE_S, Timeouts, pause
from repl_env.client.connection.websocket_client import ConnectionDropped, WebSocketClient
from repl_env.client.protocol import refusal_errors
from repl_env.errors import AuthenticationFailed, BadReply, ServerError, SessionLost, TooLarge

# A client that closes without a socket tries for this long to tell the server.
FAREWELL_S = 2.0


class ReconnectingSocket:
    """Used by one task at a time.

    Attributes:
        told: the server's handshake for the last open or resume.
        present: the socket that has the session, None while there is none.
        gone: why the session is lost for good, None while it is not.
    """

    def __init__(
        self,
        access: ServerAccess,
        patience: Timeouts,
        socket: WebSocketClient,
        told: SessionHandshake,
    ) -> None:
        self._access = access
        self._patience = patience
        self.told = told
        self.present: WebSocketClient | None = socket
        self.gone: str | None = None
        self._since = asyncio.get_running_loop().time()
        self._breaks = 0

    async def socket(self) -> WebSocketClient:
        """Return a socket that has the session, opening one if necessary.

        Raises:
            SessionLost: the session no longer exists.
            AuthenticationFailed: the server no longer accepts the key.
        """
        if self.present is not None and not self.present.is_open:
            await self._read_out(self.present)
        self._check()
        if self.present is None:
            await asyncio.sleep(self._pause())
            found, self.told = await self._resumed()
            self._since = asyncio.get_running_loop().time()
            if self.gone is not None:
                found.abort()  # the client was closed meanwhile
            self._check()
            self.present = found
        return self.present

    def answered(self) -> None:
        """Record that the socket works: a request was answered on it."""
        self._breaks = 0

    def cut(self) -> None:
        """Drop the socket, which is silent or sends invalid data."""
        socket, self.present = self.present, None
        if socket is not None:
            socket.abort()

    def dropped(self, dropped: ConnectionDropped) -> None:
        """Handle a lost socket.

        Raises:
            TooLarge: the size of a message was the reason, so that sending it again is useless.
            ServerError: the session is gone with it.
        """
        self.cut()
        if dropped.refused_theirs:
            most = self._patience.message_bytes
            raise TooLarge(f"the reply is over {most:,} bytes, which is max_message_size_mb")
        if dropped.refused_ours:
            reason = self._access.secrets.cut(dropped.reason)
            raise TooLarge(f"the server takes no message of this size ({reason})")
        if dropped.code in refusal_errors.CLOSES:
            kind, self.gone = refusal_errors.CLOSES[dropped.code]
            raise kind(self.gone)

    async def close(self) -> None:
        """End the session, and tell the server, which would otherwise keep it for its grace
        time.
        """
        ended, self.gone = self.gone is not None, self.gone or "the client closed it"
        socket, self.present = self.present, None
        told = socket is not None and await socket.leave()
        if not told and not ended:
            try:
                async with asyncio.timeout(FAREWELL_S):
                    socket, _ = await self._once()
                    await socket.leave()
            except (ServerError, TimeoutError):
                return

    def _check(self) -> None:
        if self.gone is not None:
            raise SessionLost(self.gone)

    def _pause(self) -> float:
        """Return the seconds before another socket: none, unless sockets break right after
        opening.
        """
        lasted_s = asyncio.get_running_loop().time() - self._since
        self._breaks = 1 if lasted_s > LONGEST_PAUSE_S else self._breaks + 1
        return min(pause(self._breaks - 1), self.told.grace_s / 2)

    async def _read_out(self, socket: WebSocketClient) -> None:
        """Learn why a socket was closed that nobody read from."""
        try:
            while True:
                await socket.receive()
        except ConnectionDropped as dropped:
            self.dropped(dropped)

    async def _resumed(self) -> tuple[WebSocketClient, SessionHandshake]:
        """Return another socket that has the session."""
        now = asyncio.get_running_loop().time
        until, attempt = now() + self.told.grace_s, 0
        while True:
            self._check()
            try:
                return await self._once()
            except (SessionLost, AuthenticationFailed, BadReply) as error:
                self.gone = self.gone or error.message
                raise
            except ServerError as error:
                attempt += 1
                pause_s = max(pause(attempt), error.retry_after or 0.0)
                if now() + pause_s > until:
                    self.gone = f"no way back to it within {self.told.grace_s:g} s"
                    raise SessionLost(f"{self.gone}: {error.message}") from error
            await asyncio.sleep(pause_s)

    async def _once(self) -> tuple[WebSocketClient, SessionHandshake]:
        socket = await WebSocketClient.open(self._access, self._patience)
        try:
            if not socket.named:
                raise SessionLost("another server is at the address, which resumes no sessions")
            told = await shake_hands(self._access, self._patience, socket, self.told.token)
            if told.session_id != self.told.session_id:
                raise SessionLost("the server resumed another session than this one")
            return socket, told
        except BaseException:
            socket.abort()
            raise
