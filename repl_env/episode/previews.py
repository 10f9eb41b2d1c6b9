"""Previews of a context, which a policy sees before it reads anything.

A preview is cut from the value without copying or encoding all of it, and never exceeds the
requested length.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from repl_sandbox.types import JSON

Preview: TypeAlias = Literal["none", "head", "head+tail", "structure"]

# Lists are assumed to be uniform; a few items show whether they are.
SAMPLED_ITEMS = 8
SHOWN_KEYS = 20
SHOWN_DEPTH = 4


def preview(value: str | bytes | JSON, mode: Preview, length: int) -> str | None:
    """Return at most `length` characters about `value`; None for mode "none" and an empty value."""
    if not value or length <= 0:
        return None
    return MODES[mode](value, length)


def head(value: str | bytes | JSON, length: int) -> str:
    """Return the beginning of the value's text."""
    return _text(value, length)[:length]


def head_and_tail(value: str | bytes | JSON, length: int) -> str:
    """Return the beginning and the end of the value's text, with a mark between them."""
    text = value if isinstance(value, (str, bytes)) else json.dumps(value, ensure_ascii=False)
    if len(text) <= length:
        return _text(text, length)[:length]
    mark = f"\n... ({len(text):,} in all) ...\n"
    characters_left = length - len(mark)
    if characters_left < 2:
        return _text(text, length)[:length]
    tail = characters_left // 2
    return (
        _text(text, characters_left - tail)[: characters_left - tail]
        + mark
        + _text(text[-tail:], tail)[-tail:]
    )


def structure(value: str | bytes | JSON, length: int) -> str:
    """Return the shape of the value: the lines of a text, the types inside a list or dict."""
    if isinstance(value, str):
        lines = value.count("\n") + (not value.endswith("\n"))
        summary = f"str, {len(value):,} characters, {lines:,} lines"
    elif isinstance(value, bytes):
        return f"bytes, {len(value):,}"[:length]
    else:
        return _clip(_shape(value, 0), length)
    characters_left = length - len(summary) - 1
    return (
        _clip(summary, length)
        if characters_left < 2
        else f"{summary}\n{head_and_tail(value, characters_left)}"
    )


MODES: dict[str, Callable[[str | bytes | JSON, int], str | None]] = {
    "none": lambda _value, _length: None,
    "head": head,
    "head+tail": head_and_tail,
    "structure": structure,
}


def _text(value: str | bytes | JSON, length: int) -> str:
    """Return the first `length` characters of the value as text, or slightly more."""
    if isinstance(value, str):
        return value[:length]
    if isinstance(value, bytes):
        return value[:length].decode("utf-8", "backslashreplace")
    text = ""
    for piece in json.JSONEncoder(ensure_ascii=False).iterencode(value):
        text += piece[:length]
        if len(text) >= length:
            break
    return text


def _shape(value: JSON, depth: int) -> str:
    if isinstance(value, str):
        return f"str ({len(value):,})"
    if isinstance(value, dict):
        return _shape_of_dict(value, depth)
    if isinstance(value, list):
        return _shape_of_list(value, depth)
    return "None" if value is None else type(value).__name__


def _shape_of_dict(value: dict[str, JSON], depth: int) -> str:
    if not value or depth >= SHOWN_DEPTH:
        return f"dict ({len(value):,})"
    keys = list(value)[:SHOWN_KEYS]
    inside = ", ".join(f"{key!r}: {_shape(value[key], depth + 1)}" for key in keys)
    more = f", ... {len(value) - SHOWN_KEYS:,} more" if len(value) > SHOWN_KEYS else ""
    return f"dict ({len(value):,}) {{{inside}{more}}}"


def _shape_of_list(value: list[JSON], depth: int) -> str:
    if not value or depth >= SHOWN_DEPTH:
        return f"list ({len(value):,})"
    step = max(1, len(value) // SAMPLED_ITEMS)
    sample = value[::step][:SAMPLED_ITEMS]
    types = list(dict.fromkeys(type(item).__name__ for item in sample))
    if len(types) == 1:
        return f"list ({len(value):,}) of {_shape(value[0], depth + 1)}"
    return f"list ({len(value):,}) of {' | '.join(types)}"


def _clip(text: str, length: int) -> str:
    return text if len(text) <= length else text[: max(0, length - 3)] + "..."[:length]
