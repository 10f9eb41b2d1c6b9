"""Events as lines of a trajectory file, and back. `docs/trajectories.md` is authoritative.

A line is one JSON object: `event` is the kind, `id` counts the events of the file from 1, the rest
are the fields of the event's class. Within a version fields and kinds may be added, so unknown ones
are skipped, and a field with a default may be missing.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from repl_env.interfaces import Message
from repl_env.llm.base import Completion, ModelUsage, TokenTrace
from repl_env.models import REPLObservation
from repl_env.rlm.budget.budget_limits import Spent
from repl_env.rlm.events import (
    AnyEvent,
    CallEnded,
    CallStarted,
    CellRan,
    CellStarted,
    ContextNote,
    ModelReplied,
    RunEnded,
    RunStarted,
    TaskNote,
)
from repl_env.rlm.trajectory.record_fields import (
    Read,
    StrictRecord,
    anything,
    count,
    flag,
    many,
    maybe,
    number,
    one_of,
    text,
)

FORMAT = "repl-env trajectory"
VERSION = 1

KINDS: Mapping[str, type[AnyEvent]] = {
    "run_started": RunStarted,
    "model_replied": ModelReplied,
    "cell_started": CellStarted,
    "cell_ran": CellRan,
    "call_started": CallStarted,
    "call_ended": CallEnded,
    "run_ended": RunEnded,
}
_NAMES = {kind: name for name, kind in KINDS.items()}

# Values from code in a session are nested 128 deep at most. Deeper ones came from the host's own
# functions, and could be too deep for readers of the file.
_DEEPEST = 256

T = TypeVar("T")


def parents_of(path: str) -> tuple[str | None, str | None]:
    """Return the parent of the run `path`, and the call that began it; None for a root."""
    parent, dot, _ = path.rpartition(".")
    return (parent, path) if dot else (None, None)


# ── writing ──────────────────────────────────────────────────────────────────────────────────────


def written(event: AnyEvent, number: int, *, figures: bool = True) -> bytes:
    """Return the line of event number `number`, with its newline.

    Without figures unless `figures`.
    """
    line = {"event": _NAMES[type(event)], "id": number, **_plain(event)}
    if isinstance(event, RunStarted):
        line["parent"], line["call"] = parents_of(event.run)
    if isinstance(event, CellRan) and not figures:
        line["observation"]["result"]["figures"] = []
    return as_line(line)


def as_line(fields: Mapping[str, Any]) -> bytes:
    """Return a JSON object as one line.

    Values that are not JSON become text, deep ones are dropped.
    """
    try:
        text = json.dumps(fields, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        text = json.dumps(_carried(fields), ensure_ascii=False)
    try:
        data = text.encode("utf-8")
    except UnicodeEncodeError:  # a lone surrogate, as a model may return: exact as an escape
        data = json.dumps(json.loads(text)).encode("ascii")
    return data + b"\n"


def _plain(value: Any) -> Any:
    """Return dataclasses and models as dictionaries; the JSON in them stays."""
    if isinstance(value, BaseModel):
        return {name: _plain(field) for name, field in value.__dict__.items()}
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, tuple) and value and is_dataclass(value[0]):
        return [_plain(item) for item in value]
    return value


def _carried(value: Any, depth: int = 0) -> Any:
    """Return `value` as JSON carries it: other objects, NaN and the infinities as text."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if depth >= _DEEPEST:
        return "..."
    if isinstance(value, Mapping):
        return {str(key): _carried(item, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_carried(item, depth + 1) for item in value]
    return str(value)


# ── reading ──────────────────────────────────────────────────────────────────────────────────────


def read(line: bytes) -> AnyEvent | None:
    """Return the event of a line; None for a kind that this version does not know.

    Raises:
        ValueError: the line is invalid; naming the field.
    """
    fields = parsed(line)
    name = fields.get("event")
    if not isinstance(name, str):
        raise ValueError("event: missing, or no text")
    reader = READERS.get(name)
    event: AnyEvent | None = None if reader is None else reader(fields)
    return event


def parsed(line: bytes) -> dict[str, Any]:
    """Return the JSON object of a line; ValueError if it is invalid."""
    try:
        fields = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8: {error}") from None
    except RecursionError:
        raise ValueError("JSON that is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise ValueError(f"a JSON object was expected, not {type(fields).__name__}")
    return fields


def _message(value: Any) -> Message:
    if not isinstance(value, dict) or not isinstance(value.get("role"), str):
        raise ValueError("a message with a role was expected")
    if not isinstance(value.get("content"), (str, list)):
        raise ValueError("content: text, or a list of parts, was expected")
    return value  # type: ignore[return-value]  # the two keys that are required were looked at


def _observation(value: Any) -> REPLObservation:
    if isinstance(value, dict):
        value = _known(REPLObservation, value)
        if isinstance(value.get("result"), dict):
            result = REPLObservation.model_fields["result"].annotation
            value["result"] = _known(result, value["result"])
    try:
        return REPLObservation.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ValueError(f"{where}: {first['msg']}") from None


def _known(model: Any, value: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields without those of a later release."""
    return {name: item for name, item in value.items() if name in model.model_fields}


USAGE = StrictRecord(
    ModelUsage,
    {"input_tokens": maybe(count), "output_tokens": maybe(count), "usd": maybe(number)},
)
TRACE = StrictRecord(
    TokenTrace,
    {"prompt_ids": many(count), "output_ids": many(count), "logprobs": many(number)},
)
COMPLETION = StrictRecord(
    Completion,
    {
        "text": text,
        "usage": USAGE,
        "finish_reason": maybe(text),
        "model": maybe(text),
        "tokens": maybe(TRACE),
    },
)
SPENT = StrictRecord(
    Spent,
    {
        "calls": count,
        "failed_calls": count,
        "input_tokens": count,
        "output_tokens": count,
        "estimated_tokens": count,
        "usd": number,
        "unpriced_calls": count,
        "cpu_seconds": number,
        "children": count,
    },
)
CONTEXT = StrictRecord(ContextNote, {"name": text, "type": text, "length": count})
TASK = StrictRecord(TaskNote, {field.name: maybe(text) for field in fields(TaskNote)})

_EVENT: Mapping[str, Read] = {"run": text, "time": number}
_CELL: Mapping[str, Read] = {**_EVENT, "turn": count, "cell": count, "code": text}
_CALL: Mapping[str, Read] = {
    **_EVENT,
    "call": text,
    "kind": one_of("llm", "rlm"),
    "cell": count,
    "model": maybe(text),
    "prompt": text,
}

READERS: Mapping[str, StrictRecord] = {
    "run_started": StrictRecord(
        RunStarted,
        {
            **_EVENT,
            "depth": count,
            "question": text,
            "model": maybe(text),
            "max_iterations": count,
            "contexts": many(CONTEXT),
            "task": maybe(TASK),
        },
    ),
    "model_replied": StrictRecord(
        ModelReplied,
        {
            **_EVENT,
            "turn": count,
            "kept": count,
            "added": many(_message),
            "completion": COMPLETION,
            "seconds": number,
            "last": flag,
        },
    ),
    "cell_started": StrictRecord(CellStarted, _CELL),
    "cell_ran": StrictRecord(CellRan, {**_CELL, "observation": _observation, "seconds": number}),
    "call_started": StrictRecord(CallStarted, _CALL),
    "call_ended": StrictRecord(
        CallEnded,
        {
            **_CALL,
            "text": text,
            "error": maybe(text),
            "truncated": flag,
            "usage": USAGE,
            "seconds": number,
            "child": flag,
        },
    ),
    "run_ended": StrictRecord(
        RunEnded,
        {
            **_EVENT,
            "final_answer": maybe(text),
            "answer_value": anything,
            "stop_reason": text,
            "error_kind": maybe(text),
            "reward": maybe(number),
            "iterations": count,
            "own": SPENT,
            "total": SPENT,
            "seconds": number,
            "ended": maybe(one_of("terminated", "truncated")),
            "task_reward": maybe(number),
        },
    ),
}
