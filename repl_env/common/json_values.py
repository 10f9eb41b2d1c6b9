"""Values that cross the border of a session: finite JSON whose text is valid Unicode."""

from __future__ import annotations

import itertools
import json
import math
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from repl_sandbox.types import JSON


# Of these nothing is further down. A subclass of one is looked at, and found to be no container.
_LEAVES = frozenset({str, int, float, bool, type(None)})

# Everything a terminal would act on: who reads it is not to have the cursor moved.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def replace_surrogates(text: str) -> str:
    """`text` with each lone surrogate replaced by "?": what can be written as UTF-8."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def visible(text: str) -> str:
    """`text` with control characters as escapes, but for line ends and tabs."""
    return replace_surrogates(
        _CONTROL.sub(lambda found: ascii(found[0])[1:-1], text.replace("\r\n", "\n"))
    )


def text_or_bytes(data: bytes) -> str | bytes:
    """The content of a file: text without a BOM if it is UTF-8, else bytes. Line ends stay."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return data


def json_text(name: str, value: Any, *, any_keys: bool = False) -> str:
    """`value` as JSON.

    `any_keys`: keys that are no texts become texts, as Python's json has it. That is for answers;
    what the code of a session is to find again must not change.

    Raises:
        TypeError: naming it, if it holds what JSON has no form for, or a key is no text.
        ValueError: naming it, if a number is not finite, or two keys of an object would be one.
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
    """ValueError if an object has two keys that are one text, such as 1 and "1".

    TypeError if one is no text, unless `any_keys` may be.

    `json.dumps` has been here before, so that there are no circles. This takes half as long. The
    engine has a check of its own (`repl_sandbox.protocol.values.json_keys`): a remote client loads
    no engine.
    """
    left = [value]
    while left:
        inner = left.pop()
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
                left.append(each)  # noqa: PERF401 (a list for each object takes longer)


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


# To the next of what a value but the first stands behind, in no string, or to the end. Behind a key
# there is one of them, too.
_NEXT = re.compile(
    r'(?:[^"\[{,]++|"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z))*+(?:[\[{,]|\Z)', re.DOTALL
)


def more_values(text: str, most: int) -> bool:
    """Whether the JSON `text` has more than `most` values, give or take two; it is not parsed.

    Of one that has, no more is looked at than says so. The engine has the like for bytes
    (`repl_sandbox.protocol.values.json_value_count`).
    """
    if len(text) <= most:
        return False
    return next(itertools.islice(_NEXT.finditer(text), most + 2, None), None) is not None


# Of messages of strangers: deeper than this, one is made to trouble whoever walks through it.
MAX_DEPTH = 64


def explain_not_json(value: Any, deepest: int = MAX_DEPTH) -> str:
    """Why `value`, read from JSON, is none that is taken, in words; "" for one that is.

    It is nested deeper than `deepest`, or holds a number that was read as infinite (1e999).
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
    """`value` as JSON carries it (tuples become lists), or None if JSON cannot carry it."""
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False)
        text.encode("utf-8")
        carried: JSON = json.loads(text)
    except (TypeError, ValueError, RecursionError):
        return None
    return carried
