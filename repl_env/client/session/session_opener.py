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


async def open_session(
    access: ServerAccess, timeouts: Timeouts, token: str | None = None
) -> RequestPipeline:
    """Return a new session, or the one that `token` names.

    Raises:
        ServerUnavailable, AuthenticationFailed, CapacityReached, QuotaExceeded: the server cannot
            be reached, or grants no session.
        SessionLost: the token has no session.
    """
    socket = await WebSocketClient.open(access, timeouts)
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


async def resume_session(
    access: ServerAccess, timeouts: Timeouts, token: str, within_s: float
) -> RequestPipeline:
    """Return the session that `token` names, which the server keeps for `within_s` seconds.

    Raises:
        ServerUnavailable: the server could not be reached within that time.
        ServerError: as `open_session`.
    """
    now = asyncio.get_running_loop().time
    until, attempt = now() + within_s, 0
    while True:
        try:
            return await open_session(access, timeouts, token)
        except ServerUnavailable as error:
            attempt += 1
            pause_s = max(pause(attempt), error.retry_after or 0.0)
            if now() + pause_s > until:
                raise
        await asyncio.sleep(pause_s)
