"""`EventLog`: what a server writes down, one JSON object a line, through standard logging.

A table says which events there are and what is fields of each. Nothing else can be fields: no keys,
tokens, expected answers, contexts, and neither code nor output unless `Settings.log_contents` is
set.
"""

from __future__ import annotations

import json
import logging
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from time import monotonic
from typing import IO, Any

from ..quotas.token_bucket import Clock, TokenBucket

LOGGER = "repl_server"

# Lines of one event in a second. A flood of refusals must not become a flood of lines: what is
# left out is counted, and the next line of the event says how many.
PER_SECOND = 100
_BURST = 10
# Characters of a text in a line; a client chooses its path and its ids.
_SHOWN = 200


@dataclass(frozen=True, slots=True)
class EventType:
    """What happened, as it is fields: the level, and the fields that a line may have.

    `contents` are fields only where the operator asked for that.
    """

    level: int
    fields: frozenset[str]
    contents: frozenset[str] = frozenset()


def _event(fields: str, *, level: int = logging.INFO, contents: str = "") -> EventType:
    return EventType(level, frozenset(fields.split()), frozenset(contents.split()))


EVENTS = {
    # The server.
    "server_started": _event("url keys"),
    "server_draining": _event("sessions"),
    "server_stopped": _event(""),
    # Connections and requests. `peer` is an address, `tenant` a key's name or an address.
    "connection_refused": _event("peer reason", level=logging.WARNING),
    "connection_ended": _event("peer reason", level=logging.WARNING),
    "request": _event("tenant method path status seconds"),
    "refused": _event("id code tenant path session", level=logging.WARNING, contents="message"),
    "fault": _event("id error traceback session", level=logging.ERROR, contents="message"),
    # Sessions. `session` is the id, which lets nobody in; the token is nowhere.
    "session_opened": _event("session tenant"),
    "session_left": _event("session tenant"),
    "session_resumed": _event("session tenant"),
    "session_closed": _event("session tenant reason"),
    # At the end of the server it was still not closed: a thread of its environment's hangs.
    "session_held": _event("session tenant", level=logging.WARNING),
    "reset": _event("session seconds"),
    # A line takes as long as a tenth of a step.
    "step": _event("session outcome seconds", level=logging.DEBUG, contents="code stdout stderr"),
    # What libraries log.
    "log": _event("logger message error traceback"),
}


class EventLog:
    """Where a server's events go.

    Args:
        contents: tell code and output too.
        clock: of the limit on lines of one event.
    """

    def __init__(self, *, contents: bool = False, clock: Clock = monotonic) -> None:
        self._logger = logging.getLogger(LOGGER)
        self._contents = contents
        self._rate_limit = LogRateLimit(clock)

    def is_enabled(self, event: str) -> bool:
        """Whether `event` would be written down, for whoever has to gather what is fields of it."""
        return self._logger.isEnabledFor(EVENTS[event].level)

    def record(self, event: str, **fields: Any) -> None:
        """Write down that `event` happened.

        Raises:
            KeyError, ValueError: the table has no such event, or no such field in it.
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
        # Whatever writes the log, as that of another ASGI server, writes what is fields.
        extra = {"event": event, "fields": fields}
        self._logger.log(
            row.level, "%s %s", event, _EventFields(fields, self._contents), extra=extra
        )

    def record_fault(self, error: BaseException, **fields: Any) -> None:
        """Write down a fault of the server's. What the error says may hold contents."""
        fields = {"error": type(error).__name__, "traceback": frames(error), "message": str(error)}
        self.record("fault", **fields, **fields)


@dataclass(frozen=True, slots=True)
class _EventFields:
    """Fields of an event as JSON text, which is made when a line is."""

    fields: dict[str, Any]
    contents: bool

    def __str__(self) -> str:
        return _as_json(self.fields, contents=self.contents)


class LogRateLimit(logging.Filter):
    """How many lines of one event there are; as a filter, of all that libraries log."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock
        self._allowed: dict[str, TokenBucket] = {}
        self._suppressed: dict[str, int] = {}

    def allow(self, event: str) -> bool:
        """Whether there may be one more now; if not, it is counted."""
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
        """How many were left out since the last one."""
        return self._suppressed.pop(event, 0)

    def filter(self, record: logging.LogRecord) -> bool:
        """As in the base. What a journal writes is thinned there."""
        if hasattr(record, "fields"):
            return True
        if not self.allow("log"):
            return False
        record.suppressed = self.suppressed("log")
        return True


class JSONFormatter(logging.Formatter):
    """A record as one line of JSON."""

    def __init__(self, *, contents: bool) -> None:
        super().__init__()
        self._contents = contents

    def format(self, record: logging.LogRecord) -> str:
        """The line of `record`, whoever logged it."""
        fields = getattr(record, "fields", None)
        fields = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": getattr(record, "event", "log"),
            **(self._of_library(record) if fields is None else fields),
        }
        return _as_json(fields, contents=self._contents)

    def _of_library(self, record: logging.LogRecord) -> dict[str, Any]:
        # Libraries put what they were given into the lines after the first, and into errors.
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
    """One line; texts are cut unless contents are fields."""
    if not contents:
        fields = {
            name: value[:_SHOWN] + "…" if isinstance(value, str) and len(value) > _SHOWN else value
            for name, value in fields.items()
        }
    return json.dumps(fields, default=str)


def frames(error: BaseException) -> list[str]:
    """Where `error` was raised, without what it says."""
    found = traceback.extract_tb(error.__traceback__)
    return [f"{frame.filename}:{frame.lineno} in {frame.name}" for frame in found]


@contextmanager
def written_to(
    stream: IO[str], *, contents: bool = False, clock: Clock = monotonic
) -> Iterator[None]:
    """Write the journal, and warnings of libraries, to `stream`.

    Steps have a line of their own only with `contents`.
    """
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JSONFormatter(contents=contents))
    handler.addFilter(LogRateLimit(clock))
    root, ours = logging.getLogger(), logging.getLogger(LOGGER)
    levels = root.level, ours.level
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    ours.setLevel(logging.DEBUG if contents else logging.INFO)
    try:
        yield
    finally:
        root.setLevel(levels[0])
        ours.setLevel(levels[1])
        root.removeHandler(handler)
