"""`Socket`: one WebSocket, opened, read and closed, and what can become of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import MutableMapping
from typing import Any
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

from repl_env.errors import NotSupported, ServerUnavailable
from repl_env.refusals import SUBPROTOCOL
from repl_env.remote import failures
from repl_env.remote.access import Access
from repl_env.remote.frames import Request
from repl_env.remote.patience import Patience

# A server that does not answer a close is gone; nothing is lost with the socket.
_CLOSE_S = 2.0
# Bytes of pongs; a server that reads has none of them waiting.
_MOST_UNREAD = 1 << 20
# The answer to a ping waits behind what is being sent, which may be megabytes over a slow line.
_PONG_FACTOR = 3


class Dropped(Exception):
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


class Socket:
    """An open WebSocket. Used by one task at a time."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection

    @classmethod
    async def open(cls, access: Access, patience: Patience) -> Socket:
        """A socket to the server.

        Raises:
            ServerUnavailable: it cannot be reached, or is no server of WebSockets.
            NotSupported: it is behind a proxy for which a library is lacking.
            ServerError: it refuses, with a status and perhaps a code.
        """
        address = access.address
        options: dict[str, Any] = {}
        if address.loopback:
            options["proxy"] = None
        if address.secure and access.tls is not None:
            options["ssl"] = access.tls
        try:
            return cls(
                await _Connect(
                    address.socket,
                    subprotocols=[Subprotocol(SUBPROTOCOL)],
                    additional_headers=dict(access.headers),
                    compression=None,  # costs both sides more than it saves: bulk goes by HTTP
                    open_timeout=patience.connect_s,
                    ping_interval=patience.ping_s,
                    ping_timeout=patience.ping_s and _PONG_FACTOR * patience.ping_s,
                    close_timeout=_CLOSE_S,
                    max_size=patience.message_bytes,
                    create_connection=_Connection,
                    logger=_Quiet(logging.getLogger("repl_env.remote"), {}),
                    **options,
                )
            )
        except InvalidStatus as error:
            answer = error.response
            headers = {name.lower(): value for name, value in answer.headers.raw_items()}
            body = bytes(answer.body or b"")
            raise failures.of_status(answer.status_code, headers, body, access.secrets) from None
        except ImportError as error:
            raise NotSupported(f"the environment names a proxy: {error}", code="PROXY") from None
        except (OSError, InvalidHandshake, InvalidURI) as error:
            # Not from it: it may repeat a header, which tracebacks would print.
            told = access.secrets.cut(str(error) or type(error).__name__)
            raise ServerUnavailable(f"no connection to {address}: {told}") from None
        except (InvalidProxy, ValueError):
            # Its text is the proxy's URL or a part of it, which may be a password.
            raise ServerUnavailable("the proxy that the environment names is none") from None

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
            raise Dropped(error) from None

    async def receive(self) -> str | bytes:
        """The next message; Dropped once the socket is gone and all that had come was read."""
        try:
            return await self._connection.recv()
        except ConnectionClosed as error:
            raise Dropped(error) from None

    async def closed(self) -> None:
        """Wait until it is closed, by whomever."""
        await self._connection.wait_closed()

    async def leave(self, *, named: bool = True) -> bool:
        """Tell the server that its session can end, and close it; whether the server has heard."""
        request = Request("close")
        try:
            # Of a server that reads nothing any more, neither would end.
            async with asyncio.timeout(_CLOSE_S):
                await self.send(request.named() if named else request.plain())
                await self._connection.close()
        except (Dropped, TimeoutError):
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
                await self.send(Request("close").named())
        except (Dropped, TimeoutError):
            self.abort()
        finally:
            self._connection.transport.close()

    def abort(self) -> None:
        """Close it at once: what the server may still send is not wanted."""
        self._connection.transport.abort()


class _Connection(ClientConnection):
    """Breaks where its answers pile up: pongs to a server that sends pings and reads nothing."""

    _unread = 0

    def data_received(self, data: bytes) -> None:
        before = self.transport.get_write_buffer_size()
        super().data_received(data)
        answers = self.transport.get_write_buffer_size() - before
        self._unread = max(0, answers) + (self._unread if before else 0)
        if self._unread > _MOST_UNREAD:
            self.transport.abort()


class _Connect(connect):
    """Follows redirects only to where it was, with the headers that were meant for it."""

    def process_redirect(self, exc: Exception) -> Exception | str:
        if isinstance(exc, InvalidStatus) and _elsewhere(self.uri, exc.response.headers):
            return exc
        return super().process_redirect(exc)


def _elsewhere(uri: str, headers: Headers) -> bool:
    """Whether a redirect leads to another origin, or nobody can say where to."""
    try:
        (location,) = headers.get_all("Location")
        new = urlsplit(location)
    except ValueError:  # there are several, or it is no URL
        return True
    old = urlsplit(uri)
    return bool(new.netloc) and (new.scheme, new.netloc) != (old.scheme, old.netloc)


class _Quiet(logging.LoggerAdapter[logging.Logger]):
    """Never at the level DEBUG, where websockets logs headers, with their keys, and frames."""

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802
        return level > logging.DEBUG and super().isEnabledFor(level)

    def process(
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[Any, MutableMapping[str, Any]]:
        return msg, kwargs
