"""`SessionSweeper`: ends the sessions that are idle, abandoned, revoked, or out of CPU time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Container, Sequence

from repl_env.client.protocol.refusal_codes import DOES_NOT_READ, IDLE, OVER_QUOTA

from ..protocol.request_error import RequestError
from ..settings import Settings
from ..tenants.tenant import Tenant
from .server_session import ServerSession

# Maximum seconds between two sweeps for unused sessions.
SWEEP_S = 1.0
_MIN_SWEEP_S = 0.01
# Seconds in which a client must use a session that its protocol makes it use at once: a client that
# left before it learnt the session's id will never come back.
CONFIRM_S = 30.0
# Sessions whose CPU time one sweep reads, in rotation; each takes a tenth of a millisecond.
_CPU_READS = 32


class SessionSweeper:
    """Examines the sessions of a server periodically.

    Args:
        settings: of the server.
        keys: the keys whose tenants may have sessions; None: sessions are not ended by their keys.
        sessions: returns the open sessions.
        others: called by each sweep, for uploads and templates.
    """

    def __init__(
        self,
        settings: Settings,
        keys: Container[str] | None,
        sessions: Callable[[], list[ServerSession]],
        others: Sequence[Callable[[], None]],
    ) -> None:
        self._settings = settings
        self._keys = keys
        self._sessions = sessions
        self._others = others
        self._next = 0  # index of the next session whose CPU time is read
        self.sweeps = 0  # sweeps so far

    async def run(self) -> None:
        """Sweep until cancelled."""
        settings = self._settings
        shortest = min(settings.idle_s, settings.grace_s, settings.send_s)
        while True:
            await asyncio.sleep(min(SWEEP_S, max(_MIN_SWEEP_S, shortest / 4)))
            self.sweeps += 1
            now = time.monotonic()
            for session in self._sessions():
                self._sweep_session(session, now)
            self._sweep_cpu()
            for sweep in self._others:
                sweep()

    def _sweep_session(self, session: ServerSession, now: float) -> None:
        self._end_slow_reader(session, now)
        self._end_revoked(session)
        if not session.awaited:
            self._end_unused(session, now)

    def _end_slow_reader(self, session: ServerSession, now: float) -> None:
        sink = session.sink
        blocked = None if sink is None else sink.blocked_since
        if sink is not None and blocked is not None and now - blocked > 2 * self._settings.send_s:
            # `BoundedConnection` measures the rate and acts first; other ASGI servers do not.
            sink.end(DOES_NOT_READ, "the client did not read its messages")

    def _end_revoked(self, session: ServerSession) -> None:
        if not self._is_revoked(session.tenant):
            return
        if session.sink is not None:
            revoked = RequestError("UNAUTHENTICATED", "the API key was revoked")
            session.sink.end(revoked.close or 1000, revoked.message)
        session.end("revoked")

    def _is_revoked(self, tenant: Tenant) -> bool:
        return self._keys is not None and tenant.kind == "key" and tenant.name not in self._keys

    def _end_unused(self, session: ServerSession, now: float) -> None:
        settings, used_at = self._settings, session.used_at
        longest = settings.idle_s if session.confirmed else min(settings.idle_s, CONFIRM_S)
        if now - used_at > longest:
            if session.sink is not None:
                session.sink.end(IDLE, "the session was idle for too long")
            session.end("idle")
        elif (
            session.detached_at is not None
            and now - max(session.detached_at, used_at) > settings.grace_s
        ):
            session.end("grace")

    def _sweep_cpu(self) -> None:
        """End sessions that keep computing while idle, once their tenant's CPU time is used up."""
        sessions = self._sessions()
        for _ in range(min(_CPU_READS, len(sessions))):
            self._next += 1
            session = sessions[self._next % len(sessions)]
            if session.account_cpu() and not session.busy and session.meter.owes_cpu:
                if session.sink is not None:
                    session.sink.end(OVER_QUOTA, "the processes used up the tenant's CPU time")
                session.end("quota")
