"""The handshake on a socket of `repl-env.v1`: the session, and its limits."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from repl_env.client.connection.server_address import ServerAccess
from repl_env.client.connection.timeouts import Timeouts
from repl_env.client.connection.websocket_client import ConnectionDropped, WebSocketClient
from repl_env.client.protocol import client_frames, refusal_errors, reply_results
from repl_env.client.protocol.client_frames import RefusalFrame, ReplyFrame, RequestFrame
from repl_env.errors import BadReply, REPLError, ServerError, ServerUnavailable

# Nobody waits in a queue for longer; servers drop clients after seconds.
HANDSHAKE_TIMEOUT_S = 300.0
# A step's limit if the server reports none: the engine's.
STEP_S = 30.0


@dataclass(frozen=True, slots=True)
class SessionHandshake:
    """A server's description of a session. `running` is the id of the request that it works on.

    A limit is None if the server has none, and `grace_s` is then infinite.
    """

    session_id: str
    token: str = field(repr=False)
    grace_s: float
    running: str | None
    timeout_s: float
    message_bytes: int | None
    context_bytes: int | None

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> SessionHandshake:
        """Parse the reply to `open` or `resume`; BadReply if it is invalid."""
        limits = data.get("limits")
        limits = limits if isinstance(limits, dict) else {}
        running = data.get("running")
        return cls(
            reply_results.field(data, "session_id", str),
            reply_results.field(data, "token", str),
            _grace(data),
            running if isinstance(running, str) else None,
            _number(limits, "timeout_s") or STEP_S,
            _count(limits, "message_bytes"),
            _count(limits, "context_bytes"),
        )


def _grace(data: Mapping[str, Any]) -> float:
    """Return the seconds that the session outlives its socket.

    Null means forever, as JSON has no inf.
    """
    if data.get("grace_s", 0.0) is None:
        return math.inf
    return _number(data, "grace_s") or 0.0


def _number(data: Mapping[str, Any], name: str) -> float | None:
    return client_frames.number(data.get(name)) or None


def _count(data: Mapping[str, Any], name: str) -> int | None:
    number = _number(data, name)
    return None if number is None else int(number)


async def perform_handshake(
    access: ServerAccess, timeouts: Timeouts, socket: WebSocketClient, token: str | None = None
) -> SessionHandshake:
    """Request a session on a new socket: a new one, or the one that `token` names.

    Raises:
        SessionLost: the token has no session.
        CapacityReached: no session became free.
        ServerUnavailable: the socket was closed instead, or nothing arrived.
        ServerError: another refusal.
    """
    request = (
        RequestFrame("open", {}) if token is None else RequestFrame("resume", {"token": token})
    )
    most_s = timeouts.message_s or HANDSHAKE_TIMEOUT_S
    try:
        async with asyncio.timeout(most_s):
            received = await _answer(socket, request)
    except ConnectionDropped as dropped:
        otherwise = (ServerUnavailable, f"the server closed the socket: {dropped}")
        kind, message = refusal_errors.CLOSES.get(dropped.code, otherwise)
        raise kind(access.secrets.cut(message)) from None
    except TimeoutError:
        raise ServerUnavailable(f"the server gave no session within {most_s:g} s") from None
    if isinstance(received, RefusalFrame):
        raise _session_error(refusal_errors.error_of_refusal(received, access.secrets))
    if not isinstance(received, ReplyFrame) or received.type != "session":
        raise BadReply("the server did not say which session the socket has")
    return SessionHandshake.of(received.data)


def _session_error(error: REPLError) -> ServerError:
    """Return the error for a refused session: never one about an episode."""
    if isinstance(error, ServerError):
        return error
    return BadReply(f"the server refuses a session as if it were a request in one: {error}")


async def _answer(socket: WebSocketClient, request: RequestFrame) -> client_frames.Frame:
    try:
        await socket.send(request.encoded())
    except ConnectionDropped:
        pass  # a refusal that was sent before the socket closed can still be read
    return client_frames.read(await socket.receive())
