"""Opens a session at an address, in the protocol that the server speaks."""

from __future__ import annotations

import asyncio

from repl_env.client.connection.handshake import perform_handshake
from repl_env.client.connection.server_address import ServerAccess
from repl_env.client.connection.timeouts import Timeouts, pause
from repl_env.client.connection.websocket_client import WebSocketClient
from repl_env.client.session.plain_session import PlainSession
from repl_env.client.session.request_pipeline import RequestPipeline
from repl_env.client.session.resumable_session import ResumableSession
from repl_env.errors import NotSupported, ServerUnavailable

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
