"""Events as lines of a trajectory file, and back. `docs/trajectories.md` is authoritative.

A line is one JSON object: `event` is the kind, `id` counts the events of the file from 1, the rest
are the fields of the event's class. Within a version fields and kinds may be added, so unknown ones
are skipped, and a field with a default may be missing.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import Any, Protocol, TypeAlias, TypeVar

from pydantic import BaseModel, ValidationError

from repl_env.common.values import replace_surrogates
from repl_env.interfaces import Message
from repl_env.llm.base import Completion, ModelUsage, TokenTrace
from repl_env.models import REPLObservation
from repl_env.rlm.budget import Spent
from repl_env.rlm.model_call import (
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

# Readers of the fields of a JSON object from a file.
#
# A reader returns the value, or raises a ValueError that names the expected value.

Read: TypeAlias = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class StrictRecord:
    """Reads a JSON object into `kind`, each field by its own reader."""

    kind: Callable[..., Any]
    readers: Mapping[str, Read]

    def __call__(self, value: Any) -> Any:
        """Return the object; ValueError naming a wrong or missing field."""
        if not isinstance(value, dict):
            raise ValueError(f"an object was expected, not {type(value).__name__}")
        found = {}
        for name, reader in self.readers.items():
            if name in value:
                found[name] = _named(name, reader, value[name])
            elif name in self._required:
                raise ValueError(f"{name}: missing")
        return self.kind(**found)

    @property
    def _required(self) -> frozenset[str]:
        return _required(self.kind)


def _named(name: str, reader: Read, value: Any) -> Any:
    try:
        return reader(value)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def text(value: Any) -> str:
    """Return a text."""
    if isinstance(value, str):
        return value
    raise ValueError(f"text was expected, not {type(value).__name__}")


def count(value: Any) -> int:
    """Return a whole number from 0."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    raise ValueError(f"a whole number from 0 was expected, not {value!r}")


def number(value: Any) -> float:
    """Return a number; those without a JSON form are texts in the file."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return value
    if value in ("nan", "inf", "-inf"):
        return float(value)
    raise ValueError(f"a number was expected, not {value!r}")


def flag(value: Any) -> bool:
    """Return true or false."""
    if isinstance(value, bool):
        return value
    raise ValueError(f"true or false was expected, not {value!r}")


def anything(value: Any) -> Any:
    """Return any JSON value."""
    return value


def maybe(reader: Read) -> Read:
    """Return a reader of the same values, or null."""
    return lambda value: None if value is None else reader(value)


def many(reader: Read) -> Read:
    """Return a reader of a list of such values."""

    def items(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise ValueError(f"a list was expected, not {type(value).__name__}")
        return tuple(reader(item) for item in value)

    return items


def one_of(*allowed: str) -> Read:
    """Return a reader of one of these texts."""

    def choice(value: Any) -> str:
        if value in allowed:
            return str(value)
        raise ValueError(f"one of {', '.join(allowed)} was expected, not {value!r}")

    return choice


def _required(kind: Any) -> frozenset[str]:
    """Return the fields without a default."""
    if kind not in _REQUIRED:
        _REQUIRED[kind] = frozenset(
            field.name
            for field in fields(kind)
            if field.default is MISSING and field.default_factory is MISSING
        )
    return _REQUIRED[kind]


_REQUIRED: dict[Any, frozenset[str]] = {}


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
_NAMES_OF_KINDS = {kind: name for name, kind in KINDS.items()}

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

    Without figures and displays unless `figures`.
    """
    line = {"event": _NAMES_OF_KINDS[type(event)], "id": number, **_plain(event)}
    if isinstance(event, RunStarted):
        line["parent"], line["call"] = parents_of(event.run)
    if isinstance(event, CellRan) and not figures:
        line["observation"]["result"].update(figures=[], displays=[])
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
    if isinstance(value, (tuple, list)) and value and _has_fields(value[0]):
        return [_plain(item) for item in value]
    return value


def _has_fields(value: object) -> bool:
    return is_dataclass(value) or isinstance(value, BaseModel)


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


# The facts of a task, from a caller's argument to a `TaskNote`.


class HasTaskFacts(Protocol):
    """A task with facts, such as those of `repl_env.tasks`."""

    @property
    def facts(self) -> Mapping[str, Any]:
        """Return the facts by name."""


GivenTask: TypeAlias = "str | Mapping[str, Any] | HasTaskFacts"

# Each fact, and its accepted names; other names are the caller's own.
_FACT_NAMES = {
    "name": ("name", "id"),
    "group_id": ("group_id",),
    "split": ("split",),
    "difficulty": ("difficulty",),
    "group": ("group",),
}


def task_note(task: GivenTask | None, group_id: str | None = None) -> TaskNote | None:
    """Return the note of `task`: a name, facts by name, or a task of `repl_env.tasks`.

    Raises:
        TypeError: naming the argument, or the fact.
    """
    facts = _facts(task)
    found = {fact: _first(facts, names) for fact, names in _FACT_NAMES.items()}
    if group_id is not None:
        found["group_id"] = _text(group_id, "group_id")
    return TaskNote(**found) if task is not None or group_id is not None else None


def _facts(task: object) -> Mapping[str, Any]:
    if task is None:
        return {}
    facts = {"name": task} if isinstance(task, str) else getattr(task, "facts", task)
    if not isinstance(facts, Mapping):
        raise TypeError(f"task must be a name, a dict of facts, or a task, not {_kind(task)}")
    return facts


def _first(facts: Mapping[str, Any], names: tuple[str, ...]) -> str | None:
    for name in names:
        if facts.get(name) is not None:
            return _text(facts[name], f"task: {name}")
    return None


def _text(value: object, name: str) -> str:
    # Datasets number their tasks, groups and levels.
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise TypeError(f"{name} must be a text or a number, not {_kind(value)}")
    return replace_surrogates(str(value))


def _kind(value: object) -> str:
    return type(value).__name__
