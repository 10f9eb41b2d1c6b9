"""`ReconnectingSocket`: the way to a session on a server: its socket, and another one when that is
gone.
"""

from __future__ import annotations

import asyncio

from repl_env.client.connection.handshake import SessionHandshake, shake_hands
from repl_env.client.connection.server_address import ServerAccess
from repl_env.client.connection.timeouts import LONGEST_PAUSE_S, Timeouts, pause
from repl_env.client.connection.websocket_client import ConnectionDropped, WebSocketClient
from repl_env.client.protocol import refusal_errors
from repl_env.errors import AuthenticationFailed, BadReply, ServerError, SessionLost, TooLarge

# A client that is closed while its socket is gone tries so long to say so.
FAREWELL_S = 2.0


class ReconnectingSocket:
    """Used by one task at a time.

    Attributes:
        told: what the server said of the session when it was last begun or resumed.
        present: the socket that has the session, None while there is none.
        gone: why the session cannot be had any more, None while it can.
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
        """A socket that has the session, opened first if need be.

        Raises:
            SessionLost: none can have it any more.
            AuthenticationFailed: the server does not take the key any more.
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
        """The socket is of use: a request was answered on it."""
        self._breaks = 0

    def cut(self) -> None:
        """Be done with the socket, which says nothing, or nothing that is understood."""
        socket, self.present = self.present, None
        if socket is not None:
            socket.abort()

    def dropped(self, dropped: ConnectionDropped) -> None:
        """Be done with a socket that is gone.

        Raises:
            TooLarge: because of the size of a message, so that sending it again is of no use.
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
        """End the session, and say so to the server: else it keeps it for its grace time."""
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
        """Seconds before another socket: none, unless they break as soon as they are there."""
        lasted_s = asyncio.get_running_loop().time() - self._since
        self._breaks = 1 if lasted_s > LONGEST_PAUSE_S else self._breaks + 1
        return min(pause(self._breaks - 1), self.told.grace_s / 2)

    async def _read_out(self, socket: WebSocketClient) -> None:
        """Learn how a socket was closed that nobody read from."""
        try:
            while True:
                await socket.receive()
        except ConnectionDropped as dropped:
            self.dropped(dropped)

    async def _resumed(self) -> tuple[WebSocketClient, SessionHandshake]:
        """Another socket that has the session."""
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
