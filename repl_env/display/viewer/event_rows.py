"""`event_row`: the small row of an event, by which a page shows lists without the event itself.

Everything in an event is hostile: a field of another type than the format says is left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

from repl_env.rlm.trajectory.event_codec import parsed

PREVIEW: Final = 90  # characters of a text: a line of a list
_MAX_MESSAGES: Final = 1000  # of one turn

Row = dict[str, Any]


def event_row(line: bytes) -> Row:
    """Return the row of a line; of kind "broken" with an `error` if the line is not an event."""
    if not line:
        return {"event": "broken", "error": "an empty line, or one that is too long to show"}
    try:
        event = parsed(line)
    except ValueError as error:
        return {"event": "broken", "error": preview(str(error))}
    return row_of(event)


def row_of(event: Mapping[str, Any]) -> Row:
    """Return the row of a parsed event."""
    kind, run = event.get("event"), event.get("run")
    if not isinstance(kind, str) or not isinstance(run, str) or kind not in _FIELDS:
        return {"event": "other", "error": preview(f"event {kind!r} of run {run!r}")}
    row: Row = {"event": kind, "run": run[:200], "time": number(event.get("time"))}
    row.update(_FIELDS[kind](event))
    return {name: value for name, value in row.items() if value is not None}


def preview(value: object, limit: int = PREVIEW) -> str | None:
    """Return the beginning of a text as one line; None of anything else."""
    if not isinstance(value, str):
        return None
    short = " ".join(value[: 2 * limit].split())
    return short if len(short) <= limit else short[:limit] + "…"


def number(value: object) -> float | int | None:
    """Return a finite number; None of anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return value if math.isfinite(value) and abs(value) < 2**53 else None


def mapping(value: object) -> Mapping[str, Any]:
    """Return a JSON object; an empty one of anything else."""
    return value if isinstance(value, dict) else {}


def _run_started(event: Mapping[str, Any]) -> Row:
    task = mapping(event.get("task"))
    return {
        "text": preview(event.get("question")),
        "model": preview(event.get("model")),
        "depth": number(event.get("depth")),
        "max_iterations": number(event.get("max_iterations")),
        "task": preview(task.get("name")),
        "group": preview(task.get("group_id"), 200),
    }


def _model_replied(event: Mapping[str, Any]) -> Row:
    completion = mapping(event.get("completion"))
    usage, added = mapping(completion.get("usage")), event.get("added")
    messages = added if isinstance(added, list) else []
    return {
        "turn": number(event.get("turn")),
        "kept": number(event.get("kept")),
        "added": [_message(message) for message in messages[:_MAX_MESSAGES]],
        "text": preview(completion.get("text")),
        "model": preview(completion.get("model")),
        "input_tokens": number(usage.get("input_tokens")),
        "output_tokens": number(usage.get("output_tokens")),
        "usd": number(usage.get("usd")),
        "seconds": number(event.get("seconds")),
        "truncated": completion.get("finish_reason") == "length" or None,
        "last": event.get("last") is True or None,
    }


def _message(message: object) -> tuple[str, int]:
    """Return the role and the number of characters."""
    fields = mapping(message)
    content = fields.get("content")
    length = len(content) if isinstance(content, str) else len(str(content))
    return preview(fields.get("role"), 40) or "?", length


def _cell(event: Mapping[str, Any]) -> Row:
    return {
        "turn": number(event.get("turn")),
        "cell": number(event.get("cell")),
        "text": preview(event.get("code")),
        "seconds": number(event.get("seconds")),
    }


def _cell_ran(event: Mapping[str, Any]) -> Row:
    observation = mapping(event.get("observation"))
    result = mapping(observation.get("result"))
    figures = result.get("figures")
    return _cell(event) | {
        "ok": result.get("success") is not False,
        "error_kind": preview(mapping(observation.get("metadata")).get("error_kind")),
        "figures": len(figures) if isinstance(figures, list) and figures else None,
        "reward": number(observation.get("reward")),
    }


def _call(event: Mapping[str, Any]) -> Row:
    usage = mapping(event.get("usage"))
    return {
        "call": preview(event.get("call"), 200),
        "kind": "rlm" if event.get("kind") == "rlm" else "llm",
        "cell": number(event.get("cell")),
        "model": preview(event.get("model")),
        "prompt": preview(event.get("prompt")),
        "text": preview(event.get("text")),
        "error": preview(event.get("error")),
        "input_tokens": number(usage.get("input_tokens")),
        "output_tokens": number(usage.get("output_tokens")),
        "usd": number(usage.get("usd")),
        "seconds": number(event.get("seconds")),
        "child": event.get("child") is True or None,
    }


_SPENT: Final = (
    "calls",
    "failed_calls",
    "input_tokens",
    "output_tokens",
    "usd",
    "unpriced_calls",
    "cpu_seconds",
    "children",
)


def spent_row(value: object) -> Row:
    """Return the numbers of what a run or a task spent."""
    spent = mapping(value)
    return {name: number(spent.get(name)) or 0 for name in _SPENT}


def _run_ended(event: Mapping[str, Any]) -> Row:
    return {
        "text": preview(event.get("final_answer")),
        "stop_reason": preview(event.get("stop_reason")),
        "error_kind": preview(event.get("error_kind")),
        "reward": number(event.get("reward")),
        "task_reward": number(event.get("task_reward")),
        "iterations": number(event.get("iterations")),
        "seconds": number(event.get("seconds")),
        "ended": preview(event.get("ended")),
        "total": spent_row(event["total"]) if "total" in event else None,
    }


_FIELDS: Final[Mapping[str, Callable[[Mapping[str, Any]], Row]]] = {
    "run_started": _run_started,
    "model_replied": _model_replied,
    "cell_started": _cell,
    "cell_ran": _cell_ran,
    "call_started": _call,
    "call_ended": _call,
    "run_ended": _run_ended,
}
