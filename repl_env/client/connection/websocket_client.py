"""`WebSocketClient`: one WebSocket, read and closed, and what can become of it."""

from __future__ import annotations

import asyncio

from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed
from websockets.frames import CloseCode
from websockets.protocol import State

from repl_env.client.connection.connector import connection_to
from repl_env.client.connection.server_address import ServerAccess
from repl_env.client.connection.timeouts import Timeouts
from repl_env.client.protocol.client_frames import RequestFrame
from repl_env.client.protocol.refusal_codes import SUBPROTOCOL

# A server that does not answer a close is gone; nothing is lost with the socket.
_CLOSE_S = 2.0


class ConnectionDropped(Exception):
    """The socket is gone. `code` is the server's close code, None without one.

    `refused_ours`: a message of ours was too large for the server; `refused_theirs`: one of the
    server's for this client.
    """

    def __init__(self, closed: ConnectionClosed) -> None:
        received, sent = closed.rcvd, closed.sent
        self.code = None if received is None else received.code
        self.reason = "" if received is None else received.reason
        theirs_first = received is not None and closed.rcvd_then_sent is not False
        self.refused_ours = self.code == CloseCode.MESSAGE_TOO_BIG and theirs_first
        self.refused_theirs = (
            not theirs_first and sent is not None and sent.code == CloseCode.MESSAGE_TOO_BIG
        )
        super().__init__(str(closed))


class WebSocketClient:
    """An open WebSocket. Used by one task at a time."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection

    @classmethod
    async def open(cls, access: ServerAccess, patience: Timeouts) -> WebSocketClient:
        """A socket to the server.

        Raises:
            ServerUnavailable: it cannot be reached, or is no server of WebSockets.
            NotSupported: it is behind a proxy for which a library is lacking.
            ServerError: it refuses, with a status and perhaps a code.
        """
        return cls(await connection_to(access, patience, _CLOSE_S))

    @property
    def named(self) -> bool:
        """Whether the server speaks `repl-env.v1`, whose frames have ids."""
        return self._connection.subprotocol == SUBPROTOCOL

    @property
    def is_open(self) -> bool:
        """Whether nobody has closed it, as far as is known here."""
        return self._connection.state is State.OPEN

    async def send(self, frame: bytes) -> None:
        """Send one text frame; Dropped if the socket is gone."""
        try:
            await self._connection.send(frame, text=True)
        except ConnectionClosed as error:
            raise ConnectionDropped(error) from None

    async def receive(self) -> str | bytes:
        """The next message; Dropped once the socket is gone and all that had come was read."""
        try:
            return await self._connection.recv()
        except ConnectionClosed as error:
            raise ConnectionDropped(error) from None

    async def closed(self) -> None:
        """Wait until it is closed, by whomever."""
        await self._connection.wait_closed()

    async def leave(self, *, named: bool = True) -> bool:
        """Tell the server that its session can end, and close it; whether the server has heard."""
        request = RequestFrame("close")
        try:
            # Of a server that reads nothing any more, neither would end.
            async with asyncio.timeout(_CLOSE_S):
                await self.send(request.named() if named else request.plain())
                await self._connection.close()
        except (ConnectionDropped, TimeoutError):
            return False
        finally:
            self.abort()
        return self._connection.close_code == CloseCode.NORMAL_CLOSURE

    async def hang_up(self) -> None:
        """As `leave`, of a session that the server may still begin; its answer is not waited for.

        A server keeps a session for its grace time if it is not told.
        """
        try:
            async with asyncio.timeout(_CLOSE_S):
                await self.send(RequestFrame("close").named())
        except (ConnectionDropped, TimeoutError):
            self.abort()
        finally:
            self._connection.transport.close()

    def abort(self) -> None:
        """Close it at once: what the server may still send is not wanted."""
        self._connection.transport.abort()
