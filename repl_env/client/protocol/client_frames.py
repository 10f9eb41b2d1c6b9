"""Frames as docs/endpoint.md has them: requests to text, text to what a server says. No I/O."""

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

# What each request is answered with.
REPLIES: Mapping[str, str] = {
    "open": "session",
    "resume": "session",
    "reset": "observation",
    "step": "observation",
    "state": "state",
    "variables": "variables",
    "follow_up": "observation",
    "draft": "draft",
    "branch": "branch",
}
# In the lists and objects of one reply; the longest, of variables, has 10,000.
MOST_VALUES = 100_000
# In a whole frame: an answer has a quarter at most, and may be told twice. Each takes 60 bytes or
# more where it takes three on the wire, and 100 MiB may come.
_MOST_IN_FRAME = 1 << 20
# The escape of half a character, as JSON has those outside of the first 65,536.
_SURROGATE = re.compile(r"\\u[dD][89abAB]")
# Those of them that OpenEnv has.
PLAIN = frozenset({"reset", "step", "state"})


@dataclass(frozen=True, slots=True)
class RequestFrame:
    """What a server is asked for. `timeout_s`: of a step's execution; `stream`: its output."""

    type: str
    data: Mapping[str, Any] | None = field(default=None, repr=False)
    timeout_s: float | None = None
    stream: bool = False
    id: str = field(default_factory=lambda: uuid.uuid4().hex)

    def plain(self) -> bytes:
        """The frame for a server that knows OpenEnv's alone, which forbids any other field."""
        return _json({"type": self.type, **self._data}, "backslashreplace")

    def named(self) -> bytes:
        """The frame of `repl-env.v1`.

        A lone surrogate, which servers take for no JSON, becomes a question mark in a step: what
        a policy writes is never an error of whoever asks for it.

        Raises:
            ValueError: there is one in another request.
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
    """The answer to a request."""

    type: str
    id: str | None
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RefusalFrame:
    """A request that was refused; `details` are the fields that not every refusal has."""

    id: str | None
    code: str
    message: str
    log_id: str | None = None
    retry_after: float | None = None
    details: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, id: str | None, data: Mapping[str, Any]) -> RefusalFrame:
        """The refusal that these fields say; what is not of its type is as if it were not there."""
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
    """A piece of what a running step prints; `dropped` characters behind it were left out."""

    id: str
    stream: str
    text: str
    dropped: int = 0


def number(value: object) -> float | None:
    """`value` if it is a number of at least 0 that a float holds; infinity is none."""
    right = isinstance(value, (int, float)) and 0 <= value <= sys.float_info.max
    return float(value) if right else None  # type: ignore[arg-type]


def values(value: list[Any]) -> int:
    """How many values there are in lists and objects, one in the other."""
    count = 0
    left: list[list[Any] | dict[str, Any]] = [value]
    while left:
        inner = left.pop()
        count += len(inner)
        each = inner.values() if isinstance(inner, dict) else inner
        left += [value for value in each if isinstance(value, (list, dict))]
    return count


Frame: TypeAlias = ReplyFrame | RefusalFrame | OutputFrame


def read(frame: str | bytes) -> Frame:
    """What a frame says; BadReply if it says nothing that this client knows."""
    if not isinstance(frame, str):
        raise BadReply("the server sent a binary frame")
    if more_values(frame, _MOST_IN_FRAME):
        raise BadReply(f"the server sent a frame of over {_MOST_IN_FRAME:,} values")
    try:
        said = json.loads(frame)
        if _SURROGATE.search(frame):  # perhaps a lone one, which no text of ours has
            said = json.loads(replace_surrogates(json.dumps(said, ensure_ascii=False)))
    except (ValueError, RecursionError):
        raise BadReply("the server sent a frame that is no JSON") from None
    if not isinstance(said, dict) or not isinstance(said.get("data", {}), dict):
        raise BadReply("the server sent a frame that is no object with an object in it")
    kind, name, data = said.get("type"), said.get("id"), said.get("data", {})
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
    """UTF-8; what becomes of lone surrogates is a name of `codecs.register_error`'s."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", surrogates)
