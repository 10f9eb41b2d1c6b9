"""Encoding of requests and decoding of server frames, as in docs/endpoint.md. No I/O."""

from __future__ import annotations

import json
import re
import sys
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from repl_env.common.json_values import more_values, replace_surrogates
from repl_env.errors import BadReply

# The type of the reply to each request.
REPLIES: Mapping[str, str] = {
    "open": "session",
    "resume": "session",
    "reset": "observation",
    "step": "observation",
    "state": "state",
    "variables": "variables",
    "follow_up": "observation",
    "draft": "draft",
    "rollback": "rollback",
    "branch": "branch",
}
# Values in the lists and objects of one reply; the longest, of variables, has 10,000.
MAX_VALUES = 100_000
# Values in a whole frame: an answer has a quarter at most, and may be repeated. Each takes 60 bytes
# or more for three on the wire, and 100 MiB may arrive.
_MAX_IN_FRAME = 1 << 20
# The escape of a surrogate, which JSON uses for characters beyond the first 65,536.
_SURROGATE = re.compile(r"\\u[dD][89abAB]")
# Requests that OpenEnv has too.
PLAIN = frozenset({"reset", "step", "state"})


@dataclass(frozen=True, slots=True)
class RequestFrame:
    """A request. `timeout_s`: limit of a step's execution; `stream`: whether to send its output."""

    type: str
    data: Mapping[str, Any] | None = field(default=None, repr=False)
    timeout_s: float | None = None
    stream: bool = False
    id: str = field(default_factory=lambda: uuid.uuid4().hex)

    def encoded_for_openenv(self) -> bytes:
        """Return the frame for OpenEnv's servers, which forbid further fields."""
        return _json({"type": self.type, **self._data}, "backslashreplace")

    def encoded(self) -> bytes:
        """Return the frame of `repl-env.v1`.

        A lone surrogate, which servers reject as invalid JSON, becomes a question mark in a step: a
        policy's text must not cause an error for the caller.

        Raises:
            ValueError: another request contains one.
        """
        more: dict[str, Any] = {}
        if self.timeout_s is not None:
            more["timeout_s"] = self.timeout_s
        if self.stream:
            more["stream"] = True
        frame = {"type": self.type, "id": self.id, **self._data, **more}
        try:
            return _json(frame, "replace" if self.type == "step" else "strict")
        except UnicodeEncodeError as error:
            raise ValueError(
                f"{self.type}: a text has the lone surrogate {error.object[error.start]!r}, which "
                "is no Unicode: text.encode('utf-8', 'replace').decode() replaces it"
            ) from None

    @property
    def _data(self) -> dict[str, Any]:
        return {} if self.data is None else {"data": self.data}


@dataclass(frozen=True, slots=True)
class ReplyFrame:
    """The reply to a request."""

    type: str
    id: str | None
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RefusalFrame:
    """A refused request; `details` are the optional fields."""

    id: str | None
    code: str
    message: str
    log_id: str | None = None
    retry_after: float | None = None
    details: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, id: str | None, data: Mapping[str, Any]) -> RefusalFrame:
        """Return the refusal with these fields; fields of another type are ignored."""
        code, message, log_id = data.get("code"), data.get("message"), data.get("id")
        known = {"code", "message", "id", "retry_after"}
        return cls(
            id,
            code if isinstance(code, str) else "UNKNOWN",
            message if isinstance(message, str) else "the server gave no reason",
            log_id if isinstance(log_id, str) else None,
            number(data.get("retry_after")),
            {name: value for name, value in data.items() if name not in known},
        )


@dataclass(frozen=True, slots=True)
class OutputFrame:
    """A piece of a running step's output; `dropped` characters after it were left out."""

    id: str
    stream: str
    text: str
    dropped: int = 0


def number(value: object) -> float | None:
    """Return `value` if it is a finite number of at least 0 that a float can hold."""
    right = isinstance(value, (int, float)) and 0 <= value <= sys.float_info.max
    return float(value) if right else None  # type: ignore[arg-type]


def values(value: list[Any]) -> int:
    """Return the number of values in nested lists and objects."""
    count = 0
    containers: list[list[Any] | dict[str, Any]] = [value]
    while containers:
        inner = containers.pop()
        count += len(inner)
        each = inner.values() if isinstance(inner, dict) else inner
        containers += [value for value in each if isinstance(value, (list, dict))]
    return count


Frame: TypeAlias = ReplyFrame | RefusalFrame | OutputFrame


def read(frame: str | bytes) -> Frame:
    """Parse a frame; BadReply if this client does not know it."""
    if not isinstance(frame, str):
        raise BadReply("the server sent a binary frame")
    if more_values(frame, _MAX_IN_FRAME):
        raise BadReply(f"the server sent a frame of over {_MAX_IN_FRAME:,} values")
    try:
        decoded = json.loads(frame)
        if _SURROGATE.search(frame):  # perhaps a lone surrogate, which valid texts do not contain
            decoded = json.loads(replace_surrogates(json.dumps(decoded, ensure_ascii=False)))
    except (ValueError, RecursionError):
        raise BadReply("the server sent a frame that is no JSON") from None
    if not isinstance(decoded, dict) or not isinstance(decoded.get("data", {}), dict):
        raise BadReply("the server sent a frame that is no object with an object in it")
    kind, name, data = decoded.get("type"), decoded.get("id"), decoded.get("data", {})
    if not isinstance(kind, str) or not isinstance(name, str | None):
        raise BadReply("the server sent a frame without a type, or with an id that is no text")
    if kind == "error":
        return RefusalFrame.of(name, data)
    return _output(name, data) if kind == "output" else ReplyFrame(kind, name, data)


def _output(name: str | None, data: Mapping[str, Any]) -> OutputFrame:
    stream, text, dropped = data.get("stream"), data.get("text", ""), data.get("dropped", 0)
    known = stream in ("stdout", "stderr") and isinstance(text, str) and isinstance(dropped, int)
    if name is None or not known:
        raise BadReply("the server sent output of an unknown form")
    return OutputFrame(name, str(stream), text, dropped)


def _json(value: Any, surrogates: str) -> bytes:
    """Parse UTF-8; `errors` names the codec error handler for lone surrogates."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", surrogates)
