"""Values that enter and leave a session: finite JSON, valid text; checks of arguments."""

from __future__ import annotations

import itertools
import json
import math
import operator
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

if TYPE_CHECKING:
    from repl_sandbox.tables import Table
    from repl_sandbox.types import JSON


# Argument checks whose errors name the argument and the accepted values.
#
# This module needs no engine; the engine checks durations (`types.check_seconds`).


def at_least(value: Any, least: int, name: str) -> int:
    """Return `value`, an integer of any type, as an int; TypeError or ValueError naming the
    argument.
    """
    try:
        count = operator.index(value)
    except TypeError:
        count = None
    if count is None or isinstance(value, bool):
        raise TypeError(f"{name} must be an int, not {type(value).__name__}")
    if count < least:
        raise ValueError(f"{name} must be at least {least}, not {count}")
    return count


def finite(value: Any, name: str) -> float:
    """Return `value`, a number of any type, as a Python number; TypeError or ValueError naming
    it.
    """
    if isinstance(value, bool) or not hasattr(value, "__float__"):
        raise TypeError(f"{name} must be a number, not {type(value).__name__}")
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):  # an array of several items; 10**400
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"{name} must be finite, not {value!r:.80}")
    return value if isinstance(value, int) else number


def above_zero(value: Any, name: str) -> float:
    """Return `value`, a number of any type above 0, as a float; TypeError or ValueError naming
    it.
    """
    number = finite(value, name)
    if number <= 0:
        raise ValueError(f"{name} must be above 0, not {value}")
    return float(number)


def one_timeout(timeout_s: float | None, timeout: float | None) -> float | None:
    """Return the time limit of a call that accepts either of two argument names.

    Raises:
        TypeError: both names were given.
        TypeError, ValueError: `timeout` is not a duration; the callee checks `timeout_s`.
    """
    if timeout is None:
        return timeout_s
    if timeout_s is not None:
        raise TypeError("timeout_s and timeout are two names of one argument: give one of them")
    return above_zero(timeout, "timeout")


def one_of(value: str, allowed: tuple[str, ...], name: str) -> None:
    """Raise ValueError naming the argument, unless `value` is one of `allowed`."""
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(allowed)}, not {value!r}")


def of_kind(value: object, kind: type, name: str) -> None:
    """Raise TypeError naming the argument, unless `value` is a `kind`."""
    if not isinstance(value, kind):
        raise TypeError(f"{name} must be a {kind.__name__}, not {type(value).__name__}")


def of_public_kind(value: object, kind: type, name: str, *, home: str = "repl_env") -> None:
    """Raise TypeError as `of_kind`, and name the module `home` that exports the class."""
    if not isinstance(value, kind):
        message = f"{name} must be a {kind.__name__} (from {home} import {kind.__name__})"
        raise TypeError(f"{message}, not {type(value).__name__}")


def check_path(value: object, name: str) -> None:
    """Raise TypeError naming the argument, unless `value` is a path."""
    if not isinstance(value, (str, os.PathLike)):
        raise TypeError(f"{name} must be a str or a Path, not {type(value).__name__}")


def as_path(value: Any, name: str) -> Path:
    """Return `value`, a str or a path, as a path; TypeError naming the argument otherwise."""
    check_path(value, name)
    return Path(value)


def check_callable(value: object, name: str) -> None:
    """Raise TypeError naming the argument, unless `value` is callable."""
    if not callable(value):
        raise TypeError(f"{name} must be callable, not {type(value).__name__}")


# Values that enter and leave a session: finite JSON with valid Unicode text.

# These types have no children. Subclasses are inspected, and turn out not to be containers.
_LEAVES = frozenset({str, int, float, bool, type(None)})

# Control characters that a terminal would act on: a reader's cursor must not move.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def replace_surrogates(text: str) -> str:
    """Return `text` with each lone surrogate replaced by "?", so that UTF-8 can encode it."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def visible(text: str) -> str:
    """Return `text` with control characters escaped, except for newlines and tabs."""
    return replace_surrogates(
        _CONTROL.sub(lambda found: ascii(found[0])[1:-1], text.replace("\r\n", "\n"))
    )


def text_or_bytes(data: bytes) -> str | bytes:
    """Return the content of a file: text without a BOM if it is UTF-8, else bytes. Line ends
    stay.
    """
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return data


def json_text(name: str, value: Any, *, any_keys: bool = False) -> str:
    """Return `value` as JSON text.

    `any_keys` converts keys that are not strings to strings, as Python's json does. Answers may be
    converted; values that the code of a session reads again must not change.

    Raises:
        TypeError: naming `value`, if it holds a value without a JSON form, or a key is not a
            string.
        ValueError: naming `value`, if a number is not finite, or two keys become one.
    """
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, RecursionError) as error:
        raise TypeError(f"{name} must hold JSON values only: {error}") from None
    except ValueError as error:
        raise ValueError(f"{name} must hold JSON values only: {error}") from None
    _check_keys(name, value, any_keys)
    return text


def _check_keys(name: str, value: Any, any_keys: bool) -> None:
    """Raise ValueError if two keys of an object become the same text, such as 1 and "1".

    TypeError if a key is not a string, unless `any_keys` is set.

    `json.dumps` ran before, so that the value has no cycles. This check takes half as long as
    `json.dumps`. The engine has its own check (`repl_sandbox.protocol.values`), because a
    remote client loads no engine.
    """
    unchecked = [value]
    while unchecked:
        inner = unchecked.pop()
        if isinstance(inner, dict):
            for key in inner:
                if type(key) is not str:
                    _check_texts(name, inner, any_keys)
                    break
            inner = inner.values()
        elif not isinstance(inner, (list, tuple)):
            continue
        for each in inner:
            if type(each) not in _LEAVES:
                unchecked.append(each)  # noqa: PERF401 (a list for each object takes longer)


def _check_texts(name: str, keys: dict[Any, Any], any_keys: bool) -> None:
    seen: dict[str, Any] = {}
    for key in keys:
        (text,) = json.loads(json.dumps({key: None}))
        if text in seen:
            raise ValueError(f"{name}: the keys {seen[text]!r} and {key!r} are one in JSON")
        seen[text] = key
    wrong = [key for key in keys if not isinstance(key, str)]
    if wrong and not any_keys:
        kind = type(wrong[0]).__name__
        raise TypeError(f"{name}: the key {wrong[0]!r} is {kind}; JSON has texts alone for keys")


# Tables, by the engine's `tables` module, which is loaded when there is one: a client may have no
# engine.


def is_written_table(value: object) -> TypeGuard[Table]:
    """Return whether `value` is a table in the form in which it goes to a session."""
    module = sys.modules.get("repl_sandbox.tables")
    return module is not None and isinstance(value, module.Table)


def table_of(value: object) -> Table | None:
    """Return the table that `value` is, as `repl_sandbox.tables.Table.of`, or None."""
    if not is_table(value):
        return None
    from repl_sandbox.tables import Table

    return Table.of(value)


def is_table(value: object) -> bool:
    """Return whether `value` is a table, written or not."""
    if not any(library in sys.modules for library in ("pandas", "polars", "pyarrow")):
        return is_written_table(value)
    from repl_sandbox.tables import is_table

    return is_table(value)


# Match up to the next separator outside strings, or to the end. A key is also followed by a
# separator.
_NEXT = re.compile(
    r'(?:[^"\[{,]++|"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z))*+(?:[\[{,]|\Z)', re.DOTALL
)


def more_values(text: str, limit: int) -> bool:
    """Return whether the JSON `text` has more than about `limit` values, without parsing it.

    The scan stops once the answer is known. The engine has the equivalent for bytes
    (`repl_sandbox.protocol.values`).
    """
    if len(text) <= limit:
        return False
    return next(itertools.islice(_NEXT.finditer(text), limit + 2, None), None) is not None


# Deeper nesting in a stranger's message is meant to exhaust the code that walks through it.
MAX_DEPTH = 64


def explain_not_json(value: Any, deepest: int = MAX_DEPTH) -> str:
    """Return why `value`, parsed from JSON, is refused; "" if it is accepted.

    A refused value is nested deeper than `deepest`, or holds a number that was read as infinite
    (1e999).
    """
    level: list[Any] = [value]
    for _ in range(deepest):
        below: list[Any] = []
        for each in level:
            for item in each.values() if isinstance(each, dict) else each:
                kind = type(item)
                if kind is dict or kind is list:
                    below.append(item)
                elif kind is float and not math.isfinite(item):
                    return "a number is too large"
        if not below:
            return ""
        level = below
    return f"this is nested deeper than {deepest}"


def json_or_none(value: object) -> JSON:
    """Return `value` as JSON carries it (tuples become lists), or None if JSON cannot carry it."""
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False)
        text.encode("utf-8")
        carried: JSON = json.loads(text)
    except (TypeError, ValueError, RecursionError):
        return None
    return carried
