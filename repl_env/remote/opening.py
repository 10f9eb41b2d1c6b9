"""From an address to a session, by whatever the server speaks."""

from __future__ import annotations

import asyncio

from repl_env.errors import NotSupported, ServerUnavailable
from repl_env.remote.access import Access
from repl_env.remote.asking import Asking
from repl_env.remote.introduction import introduce
from repl_env.remote.patience import Patience, pause
from repl_env.remote.plain import PlainSession
from repl_env.remote.session import Session
from repl_env.remote.socket import Socket


async def open_session(access: Access, patience: Patience, token: str | None = None) -> Asking:
    """A new session, or the one that `token` names.

    Raises:
        ServerUnavailable, AuthenticationFailed, CapacityReached, QuotaExceeded: the server cannot
            be reached, or gives no session.
        SessionLost: there is none of this token.
    """
    socket = await Socket.open(access, patience)
    try:
        if socket.named:
            told = await introduce(access, patience, socket, token)
            return Session(access, patience, socket, told)
        if token is not None:
            raise NotSupported("this server has no sessions that could be resumed")
        return PlainSession(access, patience, socket)
    except BaseException:
        await socket.hang_up()
        raise


async def resume_session(access: Access, patience: Patience, token: str, within_s: float) -> Asking:
    """The session that `token` names, which the server keeps for `within_s` seconds.

    Raises:
        ServerUnavailable: the server could not be reached meanwhile.
        ServerError: as `open_session`.
    """
    now = asyncio.get_running_loop().time
    until, attempt = now() + within_s, 0
    while True:
        try:
            return await open_session(access, patience, token)
        except ServerUnavailable as error:
            attempt += 1
            pause_s = max(pause(attempt), error.retry_after or 0.0)
            if now() + pause_s > until:
                raise
        await asyncio.sleep(pause_s)
