"""WebSocket connections to a server; errors contain no secrets."""

from __future__ import annotations

import logging
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from websockets.asyncio.client import ClientConnection, connect
from websockets.datastructures import Headers
from websockets.exceptions import InvalidHandshake, InvalidProxy, InvalidStatus, InvalidURI
from websockets.typing import Subprotocol

from repl_env.client.connection.server_address import ServerAccess
from repl_env.client.connection.timeouts import Timeouts
from repl_env.client.protocol import refusal_errors
from repl_env.client.protocol.refusal_codes import SUBPROTOCOL
from repl_env.errors import NotSupported, ServerUnavailable

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
        raise refusal_errors.error_of_status(
            answer.status_code, headers, body, access.secrets
        ) from None
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
