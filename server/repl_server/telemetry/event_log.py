"""`EventLog`: structured events of a server, one JSON object per line, through `logging`.

The table EVENTS lists every event and its fields, so no other value can reach the log: no keys,
tokens, expected answers or contexts, and code and output only with `Settings.log_contents`.
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

# Lines per second of one event. A flood of errors must not become a flood of lines: suppressed
# lines are counted, and the next line of the event has their number.
PER_SECOND = 100
_BURST = 10
# Characters of one text in a line: clients choose paths and ids.
_SHOWN = 200


@dataclass(frozen=True, slots=True)
class EventType:
    """The level of an event and the fields its line may have; `contents`: fields for debugging."""

    level: int
    fields: frozenset[str]
    contents: frozenset[str] = frozenset()


def _event(fields: str, *, level: int = logging.INFO, contents: str = "") -> EventType:
    return EventType(level, frozenset(fields.split()), frozenset(contents.split()))


EVENTS = {
    # Server.
    "server_started": _event("url keys"),
    "server_draining": _event("sessions"),
    "server_stopped": _event(""),
    # Connections and requests. `peer` is an address, `tenant` the name of a key or an address.
    "connection_refused": _event("peer reason", level=logging.WARNING),
    "connection_ended": _event("peer reason", level=logging.WARNING),
    "request": _event("tenant method path status seconds"),
    "refused": _event("id code tenant path session", level=logging.WARNING, contents="message"),
    "fault": _event("id error traceback session", level=logging.ERROR, contents="message"),
    # Sessions. `session` is the id, which grants no access; the token is never logged.
    "session_opened": _event("session tenant"),
    "session_left": _event("session tenant"),
    "session_resumed": _event("session tenant"),
    "session_closed": _event("session tenant reason"),
    # The session could not be closed before the server stopped: a thread of its environment hangs.
    "session_leaked": _event("session tenant", level=logging.WARNING),
    "reset": _event("session seconds"),
    # DEBUG, because a line costs a tenth of a short step.
    "step": _event("session outcome seconds", level=logging.DEBUG, contents="code stdout stderr"),
    # Log records of libraries.
    "log": _event("logger message error traceback"),
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
    stream: IO[str], *, contents: bool = False, clock: Clock = monotonic
) -> Iterator[None]:
    """Write the event log, and warnings of libraries, to `stream`; steps only with `contents`."""
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
