"""The context of an episode: the caller's values as variables, with length and preview.

A caller gives one object, or several by name. A str is text and never a path; a `pathlib.Path` is a
file, which is read here, on the caller's side.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

from repl_env.common.files import read_regular
from repl_env.common.values import (
    is_table,
    is_written_table,
    json_text,
    replace_surrogates,
    table_of,
    text_or_bytes,
)

if TYPE_CHECKING:
    from repl_env.episode.sandboxes import SandboxProvider
    from repl_sandbox.tables import Table, TableLike
    from repl_sandbox.types import JSON

# A context as sessions receive it.
Value: TypeAlias = "str | bytes | JSON | Table"

Preview: TypeAlias = Literal["none", "head", "head+tail", "structure"]

# Lists are assumed to be uniform; a few items show whether they are.
SAMPLED_ITEMS = 8
SHOWN_KEYS = 20
SHOWN_DEPTH = 4


def preview(value: Value, mode: Preview, length: int) -> str | None:
    """Return at most `length` characters about `value`; None for mode "none" and an empty value."""
    if not value or length <= 0:
        return None
    return MODES[mode](value, length)


def head(value: Value, length: int) -> str:
    """Return the beginning of the value's text."""
    return _text(value, length)[:length]


def head_and_tail(value: Value, length: int) -> str:
    """Return the beginning and the end of the value's text, with a mark between them; of a table
    the beginning alone.
    """
    if is_written_table(value):
        return _text(value, length)
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


def structure(value: Value, length: int) -> str:
    """Return the shape of the value: the lines of a text, the types inside a list or dict, the
    columns of a table.
    """
    if isinstance(value, str):
        lines = value.count("\n") + (not value.endswith("\n"))
        summary = f"str, {len(value):,} characters, {lines:,} lines"
    elif isinstance(value, bytes):
        return f"bytes, {len(value):,}"[:length]
    elif is_written_table(value):
        return _clip(_columns(value), length)
    else:
        return _clip(_shape(cast("JSON", value), 0), length)
    characters_left = length - len(summary) - 1
    return (
        _clip(summary, length)
        if characters_left < 2
        else f"{summary}\n{head_and_tail(value, characters_left)}"
    )


MODES: dict[str, Callable[[Value, int], str | None]] = {
    "none": lambda _value, _length: None,
    "head": head,
    "head+tail": head_and_tail,
    "structure": structure,
}


def _text(value: Value, length: int) -> str:
    """Return the first `length` characters of the value as text, or slightly more."""
    if isinstance(value, str):
        return value[:length]
    if is_written_table(value):
        return value.shown[:length]
    if isinstance(value, bytes):
        return value[:length].decode("utf-8", "backslashreplace")
    text = ""
    for piece in json.JSONEncoder(ensure_ascii=False).iterencode(value):
        text += piece[:length]
        if len(text) >= length:
            break
    return text


def _columns(table: Table) -> str:
    """Return class, size and columns of a table."""
    more = f", ... {table.width - len(table.columns):,} more" * (table.width > len(table.columns))
    columns = ", ".join(f"{name}: {kind}" for name, kind in table.columns)
    return f"{table.library} {table.type}, {table.size} {{{columns}{more}}}"


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


# The values as variables.

Given: TypeAlias = "str | bytes | list[Any] | dict[str, Any] | Path | Table | TableLike"

NAME = "context"


@dataclass(frozen=True, slots=True)
class StoredContext:
    """Stands for a value that sessions begin with and this process does not hold.

    `type` is the name of its type, `shown` its preview. `read` returns the value, which may take
    long and raise OSError.
    """

    type: str
    shown: str | None
    read: Callable[[], Value] = field(repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class ContextPart:
    """One variable of a context. `length` counts characters, bytes, characters of JSON, or rows."""

    name: str
    value: Value | StoredContext
    length: int
    unit: str

    @property
    def type(self) -> str:
        """The name of the value's type."""
        if isinstance(self.value, StoredContext) or is_written_table(self.value):
            return self.value.type
        return type(self.value).__name__

    def read(self) -> Value:
        """Return the value; OSError if it is stored elsewhere and unavailable."""
        return self.value.read() if isinstance(self.value, StoredContext) else self.value

    def preview(self, mode: Preview, length: int) -> str | None:
        """Return at most `length` characters about the value."""
        if isinstance(self.value, StoredContext):
            return None if self.value.shown is None else self.value.shown[:length] or None
        return preview(self.value, mode, length)


@dataclass(frozen=True, slots=True)
class Context:
    """The context of an episode. `preview` is None if there is nothing to show.

    `sandbox_provider` provides the session, if the sandbox already holds the variables named in
    `source.shared`.
    """

    parts: tuple[ContextPart, ...]
    preview: str | None
    sandbox_provider: SandboxProvider | None = None
    length: int = field(init=False)  # the sum of the parts' lengths; each observation includes it

    def __post_init__(self) -> None:
        object.__setattr__(self, "length", sum(part.length for part in self.parts))

    def previewed(self, mode: Preview, length: int) -> Context:
        """Return the same context with another preview."""
        preview = _preview(self.parts, mode, length)
        return replace(self, preview=None if preview is None else replace_surrogates(preview))

    @property
    def text(self) -> str | None:
        """The context itself if it is one text, else None."""
        only = self.parts[0].value if len(self.parts) == 1 else None
        return only if isinstance(only, str) else None

    def announcement(self) -> str | None:
        """The line of the first observation that names the loaded context, or None without
        context.
        """
        if not self.length:
            return None
        if len(self.parts) == 1 and self.parts[0].name == NAME:
            loaded, part = f"{self.length} {self.parts[0].unit}", NAME
            return f"Context loaded ({loaded}). Use '{part}' variable to access it."
        listed = ", ".join(f"{part.name} ({part.length} {part.unit})" for part in self.parts)
        return f"Contexts loaded: {listed}. Use the variables of these names to access them."


def resolve(
    context: Given | Context | None,
    contexts: Mapping[str, Given] | None,
    default: Given | None,
    *,
    mode: Preview,
    preview_length: int,
    sandbox_provider: SandboxProvider | None = None,
    preset: tuple[ContextPart, ...] = (),
) -> Context:
    """Return the context that these arguments describe.

    A resolved context is returned as it is. `context` overrides `default`; without both the context
    is an empty text, unless `contexts` names other variables, or sessions from `sandbox_provider`
    begin with a variable of that name, which is then the context. `preset` are further variables
    that sessions from `sandbox_provider` begin with.

    Raises:
        TypeError: a context is not a str, bytes, list, dict, Path or table, or holds a value that
            is not JSON.
        ValueError: a context is given twice, has an invalid name, or holds a number that is not
            finite or an object with two keys that are equal in JSON.
        OSError: a Path cannot be read.
    """
    if isinstance(context, Context):
        return context
    single_context = default if context is None and not _named(preset, NAME) else context
    origin = sandbox_provider if preset else None
    if not isinstance(contexts, Mapping | None):
        raise TypeError(f"contexts must be a dict, not {type(contexts).__name__}")
    named = dict(contexts or {})
    if single_context is not None:
        if NAME in named and context is not None:
            raise ValueError("contexts must not have the name 'context' when context is given")
        named = {NAME: single_context, **named}
    elif (
        not named
        and not preset
        and sandbox_provider is not None
        and NAME in sandbox_provider.shared
    ):
        named, origin = {NAME: sandbox_provider.shared[NAME]}, sandbox_provider
    elif not named and not preset:
        named = {NAME: ""}
    for name in named:
        if not isinstance(name, str):
            raise TypeError(f"contexts: {name!r} must be a str, not {type(name).__name__}")
        if _named(preset, name):
            raise ValueError(f"uploads: {name!r} is given as a context as well")
    alone = NAME if single_context is not None else None
    parts = *(_part(name, value, alone) for name, value in named.items()), *preset
    preview = _preview(parts, mode, preview_length)
    return Context(parts, None if preview is None else replace_surrogates(preview), origin)


def _named(parts: tuple[ContextPart, ...], name: str) -> bool:
    return any(part.name == name for part in parts)


def _part(name: str, value: Given, alone: str | None) -> ContextPart:
    """Return a variable; `alone` is the name of the variable that `context` sets."""
    argument = name if name == alone else f"contexts: {name}"
    if isinstance(value, Path):
        value = text_or_bytes(read_regular(value))
    if isinstance(value, (bytearray, memoryview)):
        value = bytes(value)
    if isinstance(value, (list, dict)):
        return ContextPart(name, value, len(json_text(argument, value)), "chars of JSON")
    known = value if isinstance(value, (str, bytes)) else table_of(value)
    if known is None:
        raise refused(argument, value)
    return ContextPart(name, known, *measured(known))


def measured(value: Value) -> tuple[int, str]:
    """Return the length of a value, and its unit: characters, bytes, rows, characters of JSON."""
    if isinstance(value, str):
        return len(value), "chars"
    if isinstance(value, bytes):
        return len(value), "bytes"
    if is_written_table(value):
        return value.rows, value.size.partition(" ")[2]
    return len(json.dumps(value, ensure_ascii=False, check_circular=False)), "chars of JSON"


def check_kind(name: str, value: object) -> None:
    """Raise TypeError unless `value` is of a type that a context may have."""
    kinds = (str, bytes, bytearray, memoryview, list, dict, Path)
    if not isinstance(value, kinds) and not is_table(value):
        raise refused(name, value)


def refused(name: str, value: object) -> TypeError:
    """Return the error for a context of another type."""
    allowed = "str, bytes, list, dict, pathlib.Path or a table of pandas, polars or pyarrow"
    return TypeError(f"{name} must be {allowed}, not {type(value).__name__}")


def _preview(parts: tuple[ContextPart, ...], mode: Preview, length: int) -> str | None:
    each = preview_share([part.name for part in parts], length)
    if len(parts) == 1 and parts[0].name == NAME:
        return parts[0].preview(mode, each)
    previews = ((part.name, part.preview(mode, each)) for part in parts)
    return "\n".join(f"{name}: {text}" for name, text in previews if text is not None) or None


def preview_share(names: Sequence[str], length: int) -> int:
    """Return the characters for each of `count` previews within `length`."""
    if tuple(names) == (NAME,):
        return length
    return max(0, length // len(names) - max(map(len, names)) - 3)
