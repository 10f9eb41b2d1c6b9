"""Keys of a dict that JSON would make one: `1` and `"1"`. Of two values one would be lost.

JSON has texts for keys and nothing else; Python's encoder writes a number, a truth value or None as
the text that it has as a value, and both keys, one after the other. A reader keeps the last.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

_text = json.JSONEncoder().encode
_HOLD = (dict, list, tuple)
_TEXTS = frozenset({str})


def check_keys(value: Any, *, texts_only: bool = False) -> None:
    """ValueError naming two keys of one dict in `value` that JSON would make one.

    `value` must be one that JSON can carry: without cycles, of bounded depth. `texts_only`: a key
    that is no text, which JSON would make one, is a TypeError.
    """
    rest = [value] if isinstance(value, _HOLD) else []
    while rest:
        held = rest.pop()
        parts: Iterable[Any] = held
        if isinstance(held, dict):
            if not _TEXTS.issuperset(map(type, held)):
                _check(held, texts_only)
            parts = list(held.values())  # at once: another thread may change the dict
        rest += [each for each in parts if isinstance(each, _HOLD)]


def _check(held: dict[Any, Any], texts_only: bool) -> None:
    seen: dict[str, Any] = {}
    keys = list(held)
    for key in keys:
        text = key if isinstance(key, str) else _text(key)
        if text in seen:
            raise ValueError(f"its keys {seen[text]!r} and {key!r} are one key in JSON")
        seen[text] = key
    for key in keys:
        if texts_only and not isinstance(key, str):
            kind = type(key).__name__
            raise TypeError(f"the key {key!r} of a dict is {kind}; JSON has texts alone for keys")
