"""`/ws`: one WebSocket, OpenEnv's frames or those of `repl-env.v1`, and the session it plays.

Bare ASGI: a frame passes through nothing that it does not need.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from typing import Any, Protocol, TypeAlias
from urllib.parse import parse_qs

from repl_env.refusals import SUBPROTOCOL

from .frames import Dialect, Refused, Request
from .hosted import HostedSession
from .hosting import Host
from .owners import owner_of
from .refusal import Refusal
from .replies import Reply, text_of
from .texts import invalid

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]

# Seconds that a closing socket may take to tell why.
_FAREWELL = 1.0
# Seconds that a socket is not read at most whose client asks too often.
_PENALTY = 1.0
# Bytes of the reason in a closing frame (RFC 6455, section 5.5.1).
_REASON = 123


class SocketRoute:
    """The ASGI application behind `/ws`."""

    def __init__(self, host: Host) -> None:
        self._host = host

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        message = await receive()
        if message["type"] != "websocket.connect":
            return
        named = SUBPROTOCOL in scope.get("subprotocols", ())
        accepted = {"type": "websocket.accept", "subprotocol": SUBPROTOCOL if named else None}
        await send(accepted)
        speech = Dialect(self._host.action, named)
        await Socket(self._host, scope, receive, send, speech, _named_session(scope)).serve()


class Speech(Protocol):
    """How a socket's frames are read and written."""

    @property
    def named(self) -> bool:
        """Whether the client says by a frame which session it plays."""

    def read(self, frame: str | bytes | None) -> Request | Refused | None:
        """What a frame asks for; None: nothing."""

    def frame(self, id: str | None, reply: Reply) -> str | None:
        """The frame of a reply; None: there is none."""


class Socket:
    """One open WebSocket. An `Outlet` of the session that it plays.

    `token`: of a session that is there, to which the socket is added while it is open, as OpenEnv
    has it; None: one of its own, or that its frames name.
    """

    def __init__(
        self,
        host: Host,
        scope: Scope,
        receive: Receive,
        send: Send,
        speech: Speech,
        token: str | None = None,
    ) -> None:
        self._host = host
        self._owner = owner_of(scope)
        self._meter = host.quotas.of(self._owner)
        self._receive, self._send = receive, send
        self._dialect = speech
        self._token = None if speech.named else token
        self._session: HostedSession | None = None
        self._early: asyncio.Task[Message] | None = None
        self._reader = asyncio.current_task()
        self._senders: set[asyncio.Task[Any]] = set()
        self._released: set[asyncio.Task[Any]] = set()
        self._leaving: tuple[int, str] | None = None
        self._hung_up = False  # by the client, without a word
        self.gone = False
        self.blocked_since: float | None = None

    async def serve(self) -> None:
        """Answer frames until one side leaves."""
        try:
            await self._serve()
        except asyncio.CancelledError:
            if self._leaving is None or _uncancelled() > 0:
                raise
        except OSError:
            self._hung_up = True
        finally:
            self._let_go()
        await self._close()

    # ── an outlet ────────────────────────────────────────────────────────────────────────────────

    async def deliver(self, id: str | None, reply: Reply) -> None:
        """Send a reply, if anybody is there to read it."""
        if self.gone:
            return
        if reply.refusal is not None:
            session = None if self._session is None else self._session.id
            self._host.watch.refused(reply.refusal, self._owner, session=session)
        frame = self._dialect.frame(id, reply)
        if frame is None:
            return
        task = asyncio.current_task()
        assert task is not None
        if not self._senders:
            self.blocked_since = time.monotonic()
        self._senders.add(task)
        try:
            await self._send({"type": "websocket.send", "text": frame})
        except OSError:
            self.gone = True
        except asyncio.CancelledError:
            if task not in self._released or task.uncancel() > 0:
                raise
        finally:
            self._released.discard(task)
            self._senders.discard(task)
            if not self._senders:
                self.blocked_since = None
        if reply.refusal is not None:
            self._end_with(reply.refusal)

    def end(self, code: int, reason: str) -> None:
        """Close the socket; whoever waits for its client to read goes on."""
        if self._leaving is None and self._reader is not None:
            self._leaving, self.gone = (code, reason), True
            self._released |= self._senders
            for sender in self._senders:
                sender.cancel()
            self._reader.cancel()

    def _end_with(self, refusal: Refusal) -> None:
        """Close the socket if `refusal` does so: to a session that is there, few do."""
        fatal = self._session is None or refusal.code in _ENDS_SESSIONS
        if fatal and refusal.close is not None:
            self.end(refusal.close, refusal.message)

    # ── its frames ───────────────────────────────────────────────────────────────────────────────

    async def _serve(self) -> None:
        if not self._dialect.named:
            opening = self._open() if self._token is None else self._resume(self._token)
            if not await self._begin(None, opening):
                return
        while True:
            message = await self._message()
            if message["type"] != "websocket.receive":
                self._hung_up = True
                return
            frame = message.get("text")
            asked = self._dialect.read(message.get("bytes") if frame is None else frame)
            try:
                self._meter.request()
            except Refusal as refusal:
                if asked is not None:
                    await self._take(Refused(refusal, asked.id, asked.size))
                # Whoever asks too often is not read meanwhile: refusals cost time as well.
                await asyncio.sleep(min(refusal.retry_after or _PENALTY, _PENALTY))
            else:
                if asked is not None and not await self._take(asked):
                    return

    async def _take(self, asked: Request | Refused) -> bool:
        """Do what a frame asks for, or hand it to the session; False if it was the last."""
        session = self._session
        name = "" if isinstance(asked, Refused) else asked.type
        if name in _OPENINGS and session is None:
            assert isinstance(asked, Request)
            opening = self._open() if name == "open" else self._resume(asked.data.token)
            await self._begin(asked.id, opening, resumed=name == "resume")
        elif session is None or name in _OPENINGS:
            await self.deliver(asked.id, Reply.refusing(_out_of_order(asked, session is None)))
        elif name == "close":
            if self._token is None:
                self._session = None
                session.end()
            self._leaving = 1000, ""
            return False
        elif name == "cancel":
            assert isinstance(asked, Request)
            found = await session.cancel(asked.data.request)
            await self.deliver(asked.id, Reply("cancelled", text_of({"running": found})))
        else:
            session.ask(asked, self)
            if not session.has_room:
                await session.room()
        return True

    async def _begin(
        self,
        id: str | None,
        opening: Coroutine[Any, Any, HostedSession],
        *,
        resumed: bool = False,
    ) -> bool:
        """Play the session that `opening` has; False if it has none, which the client is told."""
        try:
            session = await opening
        except Refusal as refusal:
            await self.deliver(id, Reply.refusing(refusal))
            if not self._dialect.named:
                self._leaving = self._leaving or (1000, refusal.message)
            return False
        self._session = session
        if resumed:
            self._host.watch.session_resumed(session)
        session.take(self)
        if self._dialect.named:
            await self.deliver(id, Reply("session", text_of(session.facts(resumed=resumed))))
        return True

    async def _open(self) -> HostedSession:
        """A new session. Whoever hangs up while it waits for one leaves the line."""
        opening = asyncio.create_task(self._host.open(self._owner))
        try:
            self._early = self._early or asyncio.create_task(_as_coroutine(self._receive()))
            await asyncio.wait([opening, self._early], return_when=asyncio.FIRST_COMPLETED)
            if not opening.done() and self._early.result()["type"] == "websocket.disconnect":
                raise OSError("the client has gone")
            return await asyncio.shield(opening)
        except BaseException:
            opening.add_done_callback(_end_if_made)
            opening.cancel()
            raise

    async def _resume(self, token: str) -> HostedSession:
        return self._host.find(self._owner, token)

    async def _message(self) -> Message:
        if self._early is None:
            return await self._receive()
        early = self._early
        message = await early
        self._early = None
        return message

    # ── its end ──────────────────────────────────────────────────────────────────────────────────

    def _let_go(self) -> None:
        self.gone = True
        if self._early is not None:
            self._early.cancel()
        session, self._session = self._session, None
        if session is None:
            return
        if self._dialect.named:
            session.leave(self)
        elif self._token is not None:
            session.detach(self)
        else:
            session.end()

    async def _close(self) -> None:
        if self._hung_up:
            return
        code, reason = self._leaving or (1000, "")
        try:
            async with asyncio.timeout(_FAREWELL):
                short = reason.encode()[:_REASON].decode("utf-8", "ignore")
                await self._send({"type": "websocket.close", "code": code, "reason": short})
        except (OSError, TimeoutError):
            # The client does not read; the server closes the connection under it.
            pass


_ENDS_SESSIONS = frozenset({"DRAINING", "SESSION_ERROR"})
_OPENINGS = frozenset({"open", "resume"})


def _named_session(scope: Scope) -> str | None:
    named = parse_qs(scope.get("query_string", b"").decode("latin-1")).get("session_id")
    return named[0] if named else None


def _out_of_order(asked: Request | Refused, first: bool) -> Refusal:
    if isinstance(asked, Refused):
        return asked.refusal
    return invalid("type", "open or resume comes first" if first else "there is a session already")


def _uncancelled() -> int:
    task = asyncio.current_task()
    assert task is not None
    return task.uncancel()


async def _as_coroutine(awaited: Awaitable[Message]) -> Message:
    return await awaited


def _end_if_made(opening: asyncio.Task[HostedSession]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().end()
