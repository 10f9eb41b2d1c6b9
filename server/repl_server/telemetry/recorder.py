"""`Telemetry`: logs and counts the events of a server."""

from __future__ import annotations

import math
from typing import Any

from repl_env.rlm.budget.budget_limits import Spent

from ..protocol.request_error import RequestError
from ..tenants.tenant import SessionIdentity, Tenant
from .event_log import EventLog
from .metrics import Metrics


class Telemetry:
    """The event log and the metrics of one server; `contents`: log code and output too."""

    def __init__(self, *, contents: bool = False) -> None:
        self.event_log = EventLog(contents=contents)
        self.metrics = Metrics()

    # ── connections and requests ─────────────────────────────────────────────────────────────────

    def connection_refused(self, peer: str, reason: str) -> None:
        """A connection from `peer` was refused."""
        self.metrics.connection_refused(reason)
        self.event_log.record("connection_refused", peer=peer, reason=reason)

    def connection_ended(self, peer: str, reason: str) -> None:
        """A limit closed a connection from `peer`."""
        self.metrics.connection_refused(reason)
        self.event_log.record("connection_ended", peer=peer, reason=reason)

    def refused(
        self,
        refusal: RequestError,
        tenant: Tenant | None,
        *,
        path: str | None = None,
        session: str | None = None,
    ) -> None:
        """A request was refused. The log line has the id that its client saw."""
        self.metrics.refused(refusal.code)
        fields = {
            "id": refusal.id,
            "code": refusal.code,
            "tenant": None if tenant is None else str(tenant),
            "path": path,
            "session": session,
            "message": refusal.message,
        }
        self.event_log.record("refused", **{name: value for name, value in fields.items() if value})

    # ── sessions ─────────────────────────────────────────────────────────────────────────────────

    def session_opened(self, session: SessionIdentity) -> None:
        """A session was opened."""
        self.event_log.record("session_opened", session=session.id, tenant=str(session.tenant))

    def session_left(self, session: SessionIdentity) -> None:
        """The socket of a session closed; the session waits to be resumed."""
        self.event_log.record("session_left", session=session.id, tenant=str(session.tenant))

    def session_resumed(self, session: SessionIdentity) -> None:
        """A socket resumed a session."""
        self.event_log.record("session_resumed", session=session.id, tenant=str(session.tenant))

    def session_closed(self, session: SessionIdentity, reason: str) -> None:
        """A session was closed for one of the reasons `metrics.ENDINGS`."""
        self.metrics.session_closed(reason)
        tenant = str(session.tenant)
        self.event_log.record("session_closed", session=session.id, tenant=tenant, reason=reason)

    def session_leaked(self, session: SessionIdentity) -> None:
        """A session could not be closed before the server stopped."""
        self.event_log.record("session_leaked", session=session.id, tenant=str(session.tenant))

    def reset(self, session: SessionIdentity, seconds: float) -> None:
        """An episode started."""
        self.metrics.reset()
        self.event_log.record("reset", session=session.id, seconds=_rounded(seconds))

    def step(self, session: SessionIdentity, action: Any, observation: Any, seconds: float) -> None:
        """A step was answered."""
        metadata = getattr(observation, "metadata", None) or {}
        outcome = metadata.get("error_kind")
        self.metrics.step(outcome if isinstance(outcome, str) else None, seconds)
        if not self.event_log.is_enabled("step"):
            return
        result = getattr(observation, "result", None)
        self.event_log.record(
            "step",
            session=session.id,
            outcome=outcome or "ok",
            seconds=_rounded(seconds),
            code=getattr(action, "code", None),
            stdout=getattr(result, "stdout", None),
            stderr=getattr(result, "stderr", None),
        )

    def sub_calls(self, spent: Spent) -> None:
        """An episode ended that spent `spent` on sub-calls."""
        self.metrics.sub_call("failed", spent.failed_calls)
        self.metrics.sub_call("ok", spent.calls - spent.failed_calls)


def _rounded(seconds: float) -> float:
    return round(seconds, 6) if math.isfinite(seconds) else 0.0
