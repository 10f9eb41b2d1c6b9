"""`Metrics`: what a server counts for Prometheus, in a registry of its own.

No label has values that a client can make up: names of keys come from the operator, outcomes and
codes from tables here, and addresses are told of nobody.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import APIRouter, Response
from fastapi.responses import PlainTextResponse
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)

from repl_env.refusals import CODES

from .owners import Owner

CONTENT_TYPE = CONTENT_TYPE_LATEST

# A step of one statement takes a millisecond; one with sub-calls, minutes.
STEP_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
# What a step came to: fine, or a kind of error (API: `error_kind`).
STEP_OUTCOMES = frozenset(
    "ok syntax exception timeout memory cpu processes output crash policy answer budget"
    " sandbox llm cancelled".split()
)
CALL_OUTCOMES = frozenset({"ok", "failed", "refused"})
ENDINGS = frozenset({"closed", "idle", "grace", "drain", "quota"})
_OTHER = "other"


class Metrics:
    """The numbers of one server."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._gauges = {
            name: Gauge(f"repl_{name}", text, registry=self._registry)
            for name, text in (
                ("sessions_open", "Sessions that are open, those in their grace time among them."),
                ("sessions_waiting", "Clients that wait for a session."),
                ("requests_waiting", "Requests that wait until fewer are under way."),
                ("connections", "Connections that are open."),
                ("inbound_bytes", "Bytes of messages that are half received."),
                ("uploaded_bytes", "Bytes of contexts that are kept."),
            )
        }
        self._resets = self._counter("resets", "Episodes that began.")
        self._steps = self._counter("steps", "Steps, by what they came to.", "outcome")
        self._step_seconds = Histogram(
            "repl_step_seconds",
            "From a step's request to its reply.",
            buckets=STEP_SECONDS,
            registry=self._registry,
        )
        self._sessions = self._counter("sessions_closed", "Sessions that ended, by why.", "reason")
        self._refusals = self._counter("refusals", "Requests that were refused.", "code")
        self._connections = self._counter("connections_refused", "Connections refused.", "reason")
        self._uploads = self._counter("uploads_bytes", "Bytes of contexts that came in.")
        self._sub_calls = self._counter("sub_calls", "Questions to models.", "outcome")
        self._cpu = self._counter("cpu_seconds", "CPU time of sessions, by key.", "key")
        # What each step counts, looked up once: by outcomes of the table, and by keys.
        self._steps_of: dict[str, Counter] = {}
        self._cpu_of: dict[str, Counter] = {}

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"repl_{name}", text, labels, registry=self._registry)

    def watch(self, name: str, value: Callable[[], float]) -> None:
        """Ask `value` for the gauge `name` whenever the numbers are read.

        Raises:
            KeyError: there is no such gauge.
        """
        self._gauges[name].set_function(value)

    def reset(self) -> None:
        """An episode began."""
        self._resets.inc()

    def step(self, outcome: str | None, seconds: float) -> None:
        """A step was answered. `outcome` is its `error_kind`."""
        name = outcome or "ok"
        counter = self._steps_of.get(name)
        if counter is None:
            known = _known(name, STEP_OUTCOMES)
            counter = self._steps.labels(known)
            if known == name:
                self._steps_of[name] = counter
        counter.inc()
        self._step_seconds.observe(seconds)

    def session_closed(self, reason: str) -> None:
        """A session ended, by one of `ENDINGS`."""
        self._sessions.labels(_known(reason, ENDINGS)).inc()

    def refused(self, code: str) -> None:
        """A request was refused."""
        self._refusals.labels(_known(code, CODES)).inc()

    def connection_refused(self, reason: str) -> None:
        """A connection was refused, or ended, by a limit; `reason` is from a table of ours."""
        self._connections.labels(reason).inc()

    def uploaded(self, count: int) -> None:
        """Bytes of a context came in."""
        self._uploads.inc(count)

    def sub_call(self, outcome: str, count: int = 1) -> None:
        """Questions to a model ended, by one of `CALL_OUTCOMES`."""
        self._sub_calls.labels(_known(outcome, CALL_OUTCOMES)).inc(count)

    def cpu(self, owner: Owner, seconds: float) -> None:
        """CPU time that a session of `owner` took."""
        name = owner.name if owner.kind == "key" else ""
        counter = self._cpu_of.get(name)
        if counter is None:
            counter = self._cpu_of[name] = self._cpu.labels(name)
        counter.inc(max(0.0, seconds))

    def text(self) -> bytes:
        """All of it as Prometheus reads it (`CONTENT_TYPE`)."""
        return generate_latest(self._registry)


def numbers(metrics: Metrics) -> APIRouter:
    """The route `/metrics`."""
    router = APIRouter(tags=["server"])

    async def read() -> Response:
        """What Prometheus reads."""
        return Response(metrics.text(), media_type=CONTENT_TYPE)

    content: dict[int | str, dict[str, Any]] = {200: {"content": {"text/plain": {}}}}
    router.add_api_route(
        "/metrics", read, methods=["GET"], response_class=PlainTextResponse, responses=content
    )
    return router


def _known(value: str, table: object) -> str:
    return value if value in table else _OTHER  # type: ignore[operator]
