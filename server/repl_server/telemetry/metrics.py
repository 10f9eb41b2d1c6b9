"""`Metrics`: Prometheus metrics of one server, in a registry of its own.

Clients cannot choose label values: the operator names the keys, tables here and in `refusal_codes`
list outcomes and codes, and no label is an address. The names of keys may identify customers, so
only the key `Settings.metrics_key` sees the names of the others.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import PlainTextResponse
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from repl_env.client.protocol.refusal_codes import CODES

from ..tenants.tenant import Tenant, tenant_of

CONTENT_TYPE = CONTENT_TYPE_LATEST

# A step of one statement takes a millisecond; one with sub-calls, minutes.
STEP_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
# Outcomes of a step: "ok", or the `error_kind` of its observation.
STEP_OUTCOMES = frozenset(
    "ok syntax exception timeout memory cpu processes output crash policy answer budget"
    " sandbox llm cancelled".split()
)
CALL_OUTCOMES = frozenset({"ok", "failed", "refused"})
ENDINGS = frozenset({"closed", "idle", "grace", "drain", "quota", "revoked"})
_OTHER = "other"


class Metrics:
    """The metrics of one server."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._gauges = {
            name: Gauge(f"repl_{name}", text, registry=self._registry)
            for name, text in (
                ("sessions_open", "Open sessions, including those in their grace period."),
                ("sessions_waiting", "Clients waiting for a session."),
                ("requests_waiting", "Requests waiting for the scheduler."),
                ("connections", "Open connections."),
                ("inbound_bytes", "Bytes of partly received messages."),
                ("uploaded_bytes", "Bytes of uploads in memory."),
            )
        }
        self._resets = self._counter("resets", "Episodes started.")
        self._steps = _StepCollector()
        self.step = self._steps.add
        self._registry.register(self._steps)
        self._sessions = self._counter("sessions_closed", "Sessions closed, by reason.", "reason")
        self._refusals = self._counter("refusals", "Requests refused, by code.", "code")
        self._connections = self._counter("connections_refused", "Connections refused.", "reason")
        self._uploads = self._counter("uploads_bytes", "Bytes of uploads received.")
        self._sub_calls = self._counter("sub_calls", "Calls to models, by outcome.", "outcome")
        self._cpu_of: dict[str, float] = {}  # by keys

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"repl_{name}", text, labels, registry=self._registry)

    def set_gauge(self, name: str, value: Callable[[], float]) -> None:
        """Read the gauge `name` from `value` at each scrape.

        Raises:
            KeyError: no such gauge.
        """
        self._gauges[name].set_function(value)

    def reset(self) -> None:
        """Count a reset."""
        self._resets.inc()

    def session_closed(self, reason: str) -> None:
        """Count a session that ended for one of the reasons ENDINGS."""
        self._sessions.labels(_known(reason, ENDINGS)).inc()

    def refused(self, code: str) -> None:
        """Count a refused request."""
        self._refusals.labels(_known(code, CODES)).inc()

    def connection_refused(self, reason: str) -> None:
        """Count a connection that a limit refused or closed. Callers take `reason` from tables."""
        self._connections.labels(reason).inc()

    def uploaded(self, count: int) -> None:
        """Count bytes of an upload."""
        self._uploads.inc(count)

    def sub_call(self, outcome: str, count: int = 1) -> None:
        """Count calls to a model with one of CALL_OUTCOMES."""
        self._sub_calls.labels(_known(outcome, CALL_OUTCOMES)).inc(count)

    def cpu(self, tenant: Tenant, seconds: float) -> None:
        """Count CPU time of a session of `tenant`."""
        name = tenant.name if tenant.kind == "key" else ""
        self._cpu_of[name] = self._cpu_of.get(name, 0.0) + max(0.0, seconds)

    def text(self, reader: str | None = None) -> bytes:
        """All metrics in the text format of Prometheus (`CONTENT_TYPE`).

        `reader`: the only key whose CPU time has its name; other keys are summed under "". None:
        every key has its name.
        """
        registry = CollectorRegistry()
        registry.register(_DurationCollector(self._cpu_of, reader))
        return generate_latest(self._registry) + generate_latest(registry)


class _StepCollector(Collector):
    """Step counts and durations. Every step updates them, so no labels and locks are involved."""

    def __init__(self) -> None:
        self._by_outcome: dict[str, int] = {}
        self._by_bucket = [0] * (len(STEP_SECONDS) + 1)
        self._seconds = 0.0
        self._since = time.time()

    def add(self, outcome: str | None, seconds: float) -> None:
        """Count a finished step. `outcome` is its `error_kind`."""
        known = _known(outcome, STEP_OUTCOMES) if outcome else "ok"
        self._by_outcome[known] = self._by_outcome.get(known, 0) + 1
        self._by_bucket[bisect_left(STEP_SECONDS, seconds)] += 1
        self._seconds += seconds

    def collect(self) -> Iterator[Metric]:
        counted = CounterMetricFamily("repl_steps", "Steps, by outcome.", labels=["outcome"])
        for outcome, count in self._by_outcome.items():
            counted.add_metric([outcome], count, created=self._since)
        yield counted
        bounds = [*map(floatToGoString, STEP_SECONDS), "+Inf"]
        durations = HistogramMetricFamily("repl_step_seconds", "Seconds from request to reply.")
        durations.add_metric(
            [], [*zip(bounds, accumulate(self._by_bucket), strict=True)], self._seconds
        )
        durations.add_sample("repl_step_seconds_created", {}, self._since)
        yield durations


class _DurationCollector(Collector):
    """CPU seconds by key, as `reader` may see them."""

    def __init__(self, seconds: Mapping[str, float], reader: str | None) -> None:
        self._seconds = seconds
        self._reader = reader

    def collect(self) -> Iterator[Metric]:
        visible: dict[str, float] = {}
        for name, seconds in self._seconds.items():
            label = name if self._reader in (None, name) else ""
            visible[label] = visible.get(label, 0.0) + seconds
        family = CounterMetricFamily(
            "repl_cpu_seconds", "CPU time of sessions, by key.", labels=["key"]
        )
        for name, seconds in visible.items():
            family.add_metric([name], seconds)
        yield family


def metrics_router(metrics: Metrics, metrics_key: str | None) -> APIRouter:
    """The route `/metrics`. The key `metrics_key` sees the names of all keys."""
    router = APIRouter(tags=["server"])

    async def read(request: Request) -> Response:
        """Metrics in the text format of Prometheus."""
        tenant = tenant_of(request.scope)
        name = tenant.name if tenant.kind == "key" else ""
        reader = None if name == metrics_key else name
        return Response(metrics.text(reader), media_type=CONTENT_TYPE)

    content: dict[int | str, dict[str, Any]] = {200: {"content": {"text/plain": {}}}}
    router.add_api_route(
        "/metrics", read, methods=["GET"], response_class=PlainTextResponse, responses=content
    )
    return router


def _known(value: str, table: object) -> str:
    return value if value in table else _OTHER  # type: ignore[operator]
