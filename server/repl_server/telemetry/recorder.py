"""`Telemetry`: what happens on a server, written down and counted."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from repl_env.rlm.budget.budget_limits import Spent

from ..protocol.request_error import RequestError
from ..tenants.tenant import Tenant
from .event_log import EventLog
from .metrics import Metrics

if TYPE_CHECKING:
    from ..sessions.server_session import ServerSession


class Telemetry:
    """The journal and the numbers of one server, which are told the same.

    Args:
        contents: write down code and output too.
    """

    def __init__(self, *, contents: bool = False) -> None:
        self.journal = EventLog(contents=contents)
        self.metrics = Metrics()

    # ── connections and requests ─────────────────────────────────────────────────────────────────

    def connection_refused(self, peer: str, reason: str) -> None:
        """A connection from `peer` was not let in."""
        self.metrics.connection_refused(reason)
        self.journal.note("connection_refused", peer=peer, reason=reason)

    def connection_ended(self, peer: str, reason: str) -> None:
        """A connection from `peer` was ended by a limit."""
        self.metrics.connection_refused(reason)
        self.journal.note("connection_ended", peer=peer, reason=reason)

    def refused(
        self,
        refusal: RequestError,
        owner: Tenant | None,
        *,
        path: str | None = None,
        session: str | None = None,
    ) -> None:
        """A request was refused; its id can be found by this."""
        self.metrics.refused(refusal.code)
        told = {
            "id": refusal.id,
            "code": refusal.code,
            "owner": None if owner is None else str(owner),
            "path": path,
            "session": session,
            "message": refusal.message,
        }
        self.journal.note("refused", **{name: value for name, value in told.items() if value})

    # ── sessions ─────────────────────────────────────────────────────────────────────────────────

    def session_opened(self, session: ServerSession) -> None:
        """A session began."""
        self.journal.note("session_opened", session=session.id, owner=str(session.owner))

    def session_left(self, session: ServerSession) -> None:
        """Its socket has gone; it waits to be resumed."""
        self.journal.note("session_left", session=session.id, owner=str(session.owner))

    def session_resumed(self, session: ServerSession) -> None:
        """A socket took it up again."""
        self.journal.note("session_resumed", session=session.id, owner=str(session.owner))

    def session_closed(self, session: ServerSession, reason: str) -> None:
        """It ended, by one of `metrics.ENDINGS`."""
        self.metrics.session_closed(reason)
        owner = str(session.owner)
        self.journal.note("session_closed", session=session.id, owner=owner, reason=reason)

    def session_held(self, session: ServerSession) -> None:
        """Something holds it, at the end of the server, and is not waited for any more."""
        self.journal.note("session_held", session=session.id, owner=str(session.owner))

    def reset(self, session: ServerSession, seconds: float) -> None:
        """An episode began."""
        self.metrics.reset()
        self.journal.note("reset", session=session.id, seconds=_rounded(seconds))

    def step(self, session: ServerSession, action: Any, observation: Any, seconds: float) -> None:
        """A step was answered."""
        metadata = getattr(observation, "metadata", None) or {}
        outcome = metadata.get("error_kind")
        self.metrics.step(outcome if isinstance(outcome, str) else None, seconds)
        if not self.journal.tells("step"):
            return
        result = getattr(observation, "result", None)
        self.journal.note(
            "step",
            session=session.id,
            outcome=outcome or "ok",
            seconds=_rounded(seconds),
            code=getattr(action, "code", None),
            stdout=getattr(result, "stdout", None),
            stderr=getattr(result, "stderr", None),
        )

    def sub_calls(self, spent: Spent) -> None:
        """An episode is over that asked models this often."""
        self.metrics.sub_call("failed", spent.failed_calls)
        self.metrics.sub_call("ok", spent.calls - spent.failed_calls)


def _rounded(seconds: float) -> float:
    return round(seconds, 6) if math.isfinite(seconds) else 0.0
