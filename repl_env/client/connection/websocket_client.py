"""`WebSocketClient`: one WebSocket with its reads, closes and failures."""

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
