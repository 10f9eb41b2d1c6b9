"""`Telemetry`: events of a server, logged as JSON lines and counted for Prometheus."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import platform
import time
import traceback
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import accumulate
from time import monotonic
from typing import IO, Any, Final, Literal

from fastapi import APIRouter, Request, Response
from fastapi.responses import PlainTextResponse
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from repl_env.client.protocol import CODES
from repl_env.rlm.budget import Spent
from repl_sandbox.host.proc import tree_memory

from .quotas import Clock, TokenBucket
from .tenants import RequestError, SessionIdentity, Tenant, tenant_of

# `EventLog`: structured events of a server, one JSON object per line, through `logging`.
#
# The table EVENTS lists every event and its fields, so no other value can reach the log: no keys,
# tokens, expected answers or contexts, and code and output only with `Settings.log_contents`.

LOGGER = "repl_server"

# Lines per second of one event. A flood of errors must not become a flood of lines: suppressed
# lines are counted, and the next line of the event has their number.
PER_SECOND = 100
_BURST = 10
# Characters of one text in a line: clients choose paths and ids.
_SHOWN = 200


@dataclass(frozen=True, slots=True)
class EventType:
    """When an event is logged, its level, and the fields that its line may have.

    `contents`: further fields, for debugging, with `Settings.log_contents` only.
    """

    text: str
    level: int
    fields: frozenset[str]
    contents: frozenset[str] = frozenset()


def _event(text: str, fields: str, *, level: int = logging.INFO, contents: str = "") -> EventType:
    return EventType(text, level, frozenset(fields.split()), frozenset(contents.split()))


# docs/operating.md has a table of these events, and one of the fields.
EVENTS: Final[Mapping[str, EventType]] = {
    "server_started": _event(
        "The server listens.", "url version tier max_sessions keys playground"
    ),
    "server_draining": _event("The server stops: it accepts no new work.", "sessions"),
    "server_stopped": _event("All sessions and connections are closed.", ""),
    "connection_refused": _event(
        "A limit refused a connection.", "peer reason", level=logging.WARNING
    ),
    "connection_ended": _event(
        "A limit closed a connection.", "peer reason", level=logging.WARNING
    ),
    "request": _event(
        "A request was answered, or a WebSocket closed. Scrapes and probes have no line.",
        "tenant method path status seconds",
    ),
    "refused": _event(
        "A request was refused, or failed.",
        "id code tenant path session",
        level=logging.WARNING,
        contents="message",
    ),
    "fault": _event(
        "An error of the server itself.",
        "id error traceback session",
        level=logging.ERROR,
        contents="message",
    ),
    "session_opened": _event("A session was opened.", "session tenant"),
    "session_left": _event(
        "The socket of a session closed; the session waits to be resumed.", "session tenant"
    ),
    "session_resumed": _event("A socket resumed a session.", "session tenant"),
    "session_closed": _event("A session ended.", "session tenant reason"),
    "session_leaked": _event(
        "A session could not be closed before the server stopped: its environment hangs.",
        "session tenant",
        level=logging.WARNING,
    ),
    "reset": _event("An episode started.", "session seconds"),
    "step_failed": _event(
        "A step did not end by itself: it crashed, timed out, or exceeded a limit.",
        "session tenant outcome seconds peak_memory",
        level=logging.WARNING,
    ),
    # DEBUG, because a line costs a tenth of a short step.
    "step": _event(
        "A step was answered.",
        "session outcome seconds",
        level=logging.DEBUG,
        contents="code stdout stderr",
    ),
    "log": _event(
        "Another record: of a library from `warning` on, or about the key file.",
        "logger message error traceback",
    ),
}

# Fields of all lines, and of the lines of EVENTS.
FIELDS: Final[Mapping[str, str]] = {
    "time": "Time of the line, UTC, ISO 8601.",
    "level": "`debug`, `info`, `warning` or `error`.",
    "event": "Name of the event.",
    "suppressed": (
        f"Lines of this event left out before this one, at more than {PER_SECOND} per second."
    ),
    "code": "Code of the refusal (endpoint.md); of `step`: the cell.",
    "error": "Class of the exception.",
    "id": "Identifies the error; its client sees the same id.",
    "keys": "True if requests need a key.",
    "logger": "Name of the library's logger.",
    "max_sessions": "Maximum number of open sessions.",
    "message": "First line of the record; of `refused` and `fault`: text of the error.",
    "method": "Method of HTTP, or `WebSocket`.",
    "outcome": "`ok`, or the `error_kind` of the observation (values.md).",
    "path": "Path of the request, without its query.",
    "peak_memory": "Most memory of the session in bytes, where it is known.",
    "peer": "Address of the connection.",
    "playground": "True if the playground is served.",
    "reason": "Limit of the connection, or reason for the session's end.",
    "seconds": "Duration; of a WebSocket: until it closed.",
    "session": "Id of the session, which grants no access.",
    "sessions": "Number of open sessions.",
    "status": "HTTP status; 101 for a WebSocket that was opened.",
    "stderr": "Standard error of the cell.",
    "stdout": "Standard output of the cell.",
    "tenant": "Name of the key, or address of the client.",
    "tier": "Isolation tier of sessions; null with a custom environment.",
    "traceback": "Stack of the exception, without its message.",
    "url": "Address of the server.",
    "version": "Version of repl-env.",
}


class EventLog:
    """Writes the events of one server.

    Args:
        contents: include code and output.
        clock: for the rate limit.
    """

    def __init__(self, *, contents: bool = False, clock: Clock = monotonic) -> None:
        self._logger = logging.getLogger(LOGGER)
        self._contents = contents
        self._rate_limit = LogRateLimit(clock)

    def is_enabled(self, event: str) -> bool:
        """Return whether `event` is logged; False spares the caller collecting its fields."""
        return self._logger.isEnabledFor(EVENTS[event].level)

    def record(self, event: str, **fields: Any) -> None:
        """Log one event.

        Raises:
            KeyError, ValueError: EVENTS has no such event, or no such field of it.
        """
        row = EVENTS[event]
        if unknown := fields.keys() - row.fields - row.contents:
            raise ValueError(f"event {event!r} has no fields {sorted(unknown)}")
        if not self._logger.isEnabledFor(row.level) or not self._rate_limit.allow(event):
            return
        if not self._contents:
            fields = {name: value for name, value in fields.items() if name in row.fields}
        if suppressed := self._rate_limit.suppressed(event):
            fields["suppressed"] = suppressed
        # For log handlers other than `written_to`, such as those of another ASGI server.
        extra = {"event": event, "fields": fields}
        self._logger.log(
            row.level, "%s %s", event, _EventFields(fields, self._contents), extra=extra
        )

    def record_fault(self, error: BaseException, **fields: Any) -> None:
        """Log an exception that the server caused. Its message counts as contents."""
        about = {"error": type(error).__name__, "traceback": frames(error), "message": str(error)}
        self.record("fault", **about, **fields)


@dataclass(frozen=True, slots=True)
class _EventFields:
    """Fields of an event, serialized only when a handler formats the line."""

    fields: dict[str, Any]
    contents: bool

    def __str__(self) -> str:
        return _as_json(self.fields, contents=self.contents)


class LogRateLimit(logging.Filter):
    """Limits the lines of each event; as a logging filter, the records of libraries together."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock
        self._allowed: dict[str, TokenBucket] = {}
        self._suppressed: dict[str, int] = {}

    def allow(self, event: str) -> bool:
        """Return whether one more line of `event` is allowed now, else count it as suppressed."""
        allowed = self._allowed.get(event)
        if allowed is None:
            allowed = self._allowed[event] = TokenBucket(
                PER_SECOND * _BURST, PER_SECOND, self._clock
            )
        if allowed.take(1):
            self._suppressed[event] = self._suppressed.get(event, 0) + 1
            return False
        return True

    def suppressed(self, event: str) -> int:
        """Lines suppressed since the last line."""
        return self._suppressed.pop(event, 0)

    def filter(self, record: logging.LogRecord) -> bool:
        """As in the base. Records of `EventLog` pass: they were limited there."""
        if hasattr(record, "fields"):
            return True
        if not self.allow("log"):
            return False
        record.suppressed = self.suppressed("log")
        return True


class JSONFormatter(logging.Formatter):
    """Formats a record as one line of JSON."""

    def __init__(self, *, contents: bool) -> None:
        super().__init__()
        self._contents = contents

    def format(self, record: logging.LogRecord) -> str:
        """The JSON line of a record of `EventLog` or of a library."""
        about = getattr(record, "fields", None)
        fields = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": getattr(record, "event", "log"),
            **(self._library_fields(record) if about is None else about),
        }
        return _as_json(fields, contents=self._contents)

    def _library_fields(self, record: logging.LogRecord) -> dict[str, Any]:
        # Lines of a message after the first, and errors, may quote data that the library processed.
        message = record.getMessage()
        fields: dict[str, Any] = {
            "logger": record.name,
            "message": message if self._contents else message.partition("\n")[0],
        }
        if suppressed := getattr(record, "suppressed", 0):
            fields["suppressed"] = suppressed
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            fields |= {"error": type(error).__name__, "traceback": frames(error)}
            if self._contents:
                fields["error"] = f"{type(error).__name__}: {error}"
        return fields


def _as_json(fields: dict[str, Any], *, contents: bool) -> str:
    """One line of JSON; long texts are cut unless contents are logged."""
    if not contents:
        fields = {
            name: value[:_SHOWN] + "…" if isinstance(value, str) and len(value) > _SHOWN else value
            for name, value in fields.items()
        }
    return json.dumps(fields, default=str)


def frames(error: BaseException) -> list[str]:
    """The stack of `error`, without its message."""
    found = traceback.extract_tb(error.__traceback__)
    return [f"{frame.filename}:{frame.lineno} in {frame.name}" for frame in found]


@contextmanager
def written_to(
    stream: IO[str], *, contents: bool = False, level: str | None = None, clock: Clock = monotonic
) -> Iterator[None]:
    """Write events from `level` up, and warnings of libraries or more, to `stream`.

    `level`: as `Settings.log_level`.
    """
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JSONFormatter(contents=contents))
    handler.addFilter(LogRateLimit(clock))
    root, ours = logging.getLogger(), logging.getLogger(LOGGER)
    levels = root.level, ours.level
    root.addHandler(handler)
    level = level or ("debug" if contents else "info")
    lowest = logging.getLevelNamesMapping()[level.upper()]
    root.setLevel(max(logging.WARNING, lowest))
    ours.setLevel(lowest)
    try:
        yield
    finally:
        root.setLevel(levels[0])
        ours.setLevel(levels[1])
        root.removeHandler(handler)


# `Metrics`: Prometheus metrics of one server, in a registry of its own.
#
# Clients cannot choose label values: the operator names the keys, tables here and in
# `client/protocol.py` list outcomes and codes, and no label is an address. The names of keys may
# identify customers, so only the key `Settings.metrics_key` sees the names of the others.

CONTENT_TYPE = CONTENT_TYPE_LATEST

# A step of one statement takes a millisecond; one with sub-calls, minutes.
STEP_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
# Outcomes of a step: "ok", or the `error_kind` of its observation.
STEP_OUTCOMES = frozenset(
    "ok syntax exception timeout memory cpu processes output crash policy answer budget"
    " sandbox llm cancelled".split()
)
# Outcomes of steps that did not end by themselves, which have a line in the log.
STEP_FAILURES = frozenset("timeout memory cpu processes output crash sandbox llm".split())
CALL_OUTCOMES = frozenset({"ok", "failed", "refused"})
ENDINGS = frozenset({"closed", "idle", "grace", "drain", "quota", "revoked"})
_OTHER = "other"


@dataclass(frozen=True, slots=True)
class MetricType:
    """The type of a metric in Prometheus, its description and its labels.

    `values`: of its only label; each begins at 0, so that a rate sees the first one.
    """

    kind: Literal["counter", "gauge", "histogram", "info"]
    text: str
    labels: tuple[str, ...] = ()
    values: frozenset[str] = frozenset()


# By name, without the suffixes that Prometheus adds. docs/operating.md has a table of them.
METRICS: Final[Mapping[str, MetricType]] = {
    "repl_server": MetricType("info", "The server.", ("version", "python", "tier")),
    "repl_sessions_open": MetricType(
        "gauge", "Open sessions, including those in their grace period."
    ),
    "repl_sessions_max": MetricType("gauge", "Maximum number of open sessions."),
    "repl_sessions_waiting": MetricType("gauge", "Clients waiting for a session."),
    "repl_sessions_waiting_max": MetricType("gauge", "Maximum number of waiting clients."),
    "repl_session_open_seconds": MetricType(
        "histogram", "Seconds to open a session, including the wait for a free one."
    ),
    "repl_sessions_closed": MetricType(
        "counter", "Sessions closed, by reason.", ("reason",), ENDINGS
    ),
    "repl_sessions_memory_bytes": MetricType(
        "gauge",
        "Memory of the processes of all sessions and their templates, shared pages counted once;"
        " an estimate in tier confined; measured every 10 seconds at most; not of tier container.",
    ),
    "repl_resets": MetricType("counter", "Episodes started."),
    "repl_reset_seconds": MetricType(
        "histogram", "Seconds from a reset to its observation, including the start of processes."
    ),
    "repl_steps": MetricType("counter", "Steps, by outcome.", ("outcome",), STEP_OUTCOMES),
    "repl_step_seconds": MetricType("histogram", "Seconds from request to reply."),
    "repl_cpu_seconds": MetricType("counter", "CPU time of sessions, by key.", ("key",)),
    "repl_sub_calls": MetricType(
        "counter", "Calls to models, by outcome.", ("outcome",), CALL_OUTCOMES
    ),
    "repl_requests_waiting": MetricType("gauge", "Requests waiting for the scheduler."),
    "repl_refusals": MetricType(
        "counter", "Requests refused, by code.", ("code",), frozenset(CODES)
    ),
    "repl_connections": MetricType("gauge", "Open connections."),
    "repl_connections_max": MetricType("gauge", "Maximum number of open connections."),
    "repl_connections_refused": MetricType("counter", "Connections refused.", ("reason",)),
    "repl_inbound_bytes": MetricType("gauge", "Bytes of partly received messages."),
    "repl_inbound_bytes_max": MetricType("gauge", "Maximum bytes of partly received messages."),
    "repl_uploads_bytes": MetricType("counter", "Bytes of uploads received."),
    "repl_uploaded_bytes": MetricType("gauge", "Bytes of uploads in memory."),
    "repl_uploaded_bytes_max": MetricType("gauge", "Maximum bytes of uploads in memory."),
}


class Metrics:
    """The metrics of one server."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._gauges = {
            name: Gauge(name, metric.text, registry=self._registry)
            for name, metric in METRICS.items()
            if metric.kind == "gauge"
        }
        self._server = Info("repl_server", METRICS["repl_server"].text, registry=self._registry)
        self._resets = self._counter("repl_resets")
        self._reset_seconds = self._histogram("repl_reset_seconds")
        self._open_seconds = self._histogram("repl_session_open_seconds")
        self._steps = _StepCollector()
        self.step = self._steps.add
        self._registry.register(self._steps)
        self._sessions = self._counter("repl_sessions_closed")
        self._refusals = self._counter("repl_refusals")
        self._connections = self._counter("repl_connections_refused")
        self._uploads = self._counter("repl_uploads_bytes")
        self._sub_calls = self._counter("repl_sub_calls")
        self._cpu_of: dict[str, float] = {}  # by keys
        self.session_memory = SessionMemory()

    def _counter(self, name: str) -> Counter:
        metric = METRICS[name]
        counter = Counter(name, metric.text, metric.labels, registry=self._registry)
        for value in sorted(metric.values):
            counter.labels(value)
        return counter

    def _histogram(self, name: str) -> Histogram:
        return Histogram(name, METRICS[name].text, registry=self._registry, buckets=STEP_SECONDS)

    def set_gauge(self, name: str, value: Callable[[], float]) -> None:
        """Read the gauge `repl_{name}` from `value` at each scrape.

        Raises:
            KeyError: no such gauge.
        """
        self._gauges[f"repl_{name}"].set_function(value)

    def set_server(self, version: str, tier: str | None) -> None:
        """Name the version and the isolation tier; None: an environment decides it."""
        python = platform.python_version()
        self._server.info({"version": version, "python": python, "tier": tier or ""})

    def session_opened(self, seconds: float) -> None:
        """Observe the time that a client waited for its session."""
        self._open_seconds.observe(seconds)

    def reset(self, seconds: float) -> None:
        """Count a reset."""
        self._resets.inc()
        self._reset_seconds.observe(seconds)

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
        self._gauges["repl_sessions_memory_bytes"].set(self.session_memory.bytes)
        registry = CollectorRegistry()
        registry.register(_DurationCollector(self._cpu_of, reader))
        return generate_latest(self._registry) + generate_latest(registry)


class _StepCollector(Collector):
    """Step counts and durations. Every step updates them, so no labels and locks are involved."""

    def __init__(self) -> None:
        self._by_outcome = dict.fromkeys(sorted(STEP_OUTCOMES), 0)
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
        steps = METRICS["repl_steps"]
        counted = CounterMetricFamily("repl_steps", steps.text, labels=steps.labels)
        for outcome, count in self._by_outcome.items():
            counted.add_metric([outcome], count, created=self._since)
        yield counted
        bounds = [*map(floatToGoString, STEP_SECONDS), "+Inf"]
        text = METRICS["repl_step_seconds"].text
        durations = HistogramMetricFamily("repl_step_seconds", text)
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
        cpu = METRICS["repl_cpu_seconds"]
        family = CounterMetricFamily("repl_cpu_seconds", cpu.text, labels=cpu.labels)
        for name, seconds in visible.items():
            family.add_metric([name], seconds)
        yield family


# Seconds for which a measurement counts: 200 processes take a tenth of a second of CPU time, and
# clients decide how often they ask.
MEMORY_S: Final = 10.0


class SessionMemory:
    """The memory of all processes that descend from this one, measured in a thread."""

    def __init__(self) -> None:
        self.bytes = 0
        self._next = 0.0  # time of the next measurement (`monotonic`)

    async def refresh(self) -> None:
        """Measure again, unless the last measurement is recent or under way."""
        now = monotonic()
        if now >= self._next:
            self._next = now + MEMORY_S
            self.bytes = await asyncio.to_thread(self._measure)

    def _measure(self) -> int:
        return tree_memory(os.getpid())


def metrics_router(metrics: Metrics, metrics_key: str | None) -> APIRouter:
    """The route `/metrics`. The key `metrics_key` sees the names of all keys."""
    router = APIRouter(tags=["server"])

    async def read(request: Request) -> Response:
        """Metrics in the text format of Prometheus."""
        tenant = tenant_of(request.scope)
        name = tenant.name if tenant.kind == "key" else ""
        reader = None if name == metrics_key else name
        await metrics.session_memory.refresh()
        return Response(metrics.text(reader), media_type=CONTENT_TYPE)

    content: dict[int | str, dict[str, Any]] = {200: {"content": {"text/plain": {}}}}
    router.add_api_route(
        "/metrics", read, methods=["GET"], response_class=PlainTextResponse, responses=content
    )
    return router


def _known(value: str, table: object) -> str:
    return value if value in table else _OTHER  # type: ignore[operator]


# `Telemetry`: logs and counts the events of a server.


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

    def session_opened(self, session: SessionIdentity, seconds: float) -> None:
        """A session was opened, in `seconds` since its client asked for it."""
        self.metrics.session_opened(seconds)
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
        self.metrics.reset(seconds)
        self.event_log.record("reset", session=session.id, seconds=_rounded(seconds))

    def step(self, session: SessionIdentity, action: Any, observation: Any, seconds: float) -> None:
        """A step was answered."""
        metadata = getattr(observation, "metadata", None) or {}
        outcome = metadata.get("error_kind")
        self.metrics.step(outcome if isinstance(outcome, str) else None, seconds)
        if outcome is not None and outcome in STEP_FAILURES:
            self._step_failed(session, outcome, metadata.get("usage"), seconds)
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

    def _step_failed(
        self, session: SessionIdentity, outcome: str, usage: Any, seconds: float
    ) -> None:
        peak = usage.get("peak_memory") if isinstance(usage, dict) else None
        self.event_log.record(
            "step_failed",
            session=session.id,
            tenant=str(session.tenant),
            outcome=outcome,
            seconds=_rounded(seconds),
            **({"peak_memory": peak} if isinstance(peak, int) and peak else {}),
        )

    def sub_calls(self, spent: Spent) -> None:
        """An episode ended that spent `spent` on sub-calls."""
        self.metrics.sub_call("failed", spent.failed_calls)
        self.metrics.sub_call("ok", spent.calls - spent.failed_calls)


def _rounded(seconds: float) -> float:
    return round(seconds, 6) if math.isfinite(seconds) else 0.0
