"""Check for keys of a dict that collide in JSON, such as `1` and `"1"`: one value would be lost.

JSON keys are text only. Python's encoder writes a number, a truth value or None as the text of that
value and emits both keys; a reader keeps the last.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

_text = json.JSONEncoder().encode
_CONTAINERS = (dict, list, tuple)
_TEXTS = frozenset({str})


def check_keys(value: Any, *, texts_only: bool = False) -> None:
    """Raise ValueError if two keys of one dict in `value` collide in JSON.

    JSON must be able to carry `value`: no cycles, bounded depth. With `texts_only`, a key that is
    not text raises TypeError, although JSON could carry it as text.
    """
    rest = [value] if isinstance(value, _CONTAINERS) else []
    while rest:
        container = rest.pop()
        parts: Iterable[Any] = container
        if isinstance(container, dict):
            if not _TEXTS.issuperset(map(type, container)):
                _check(container, texts_only)
            parts = list(container.values())  # a copy, because another thread may change the dict
        rest += [each for each in parts if isinstance(each, _CONTAINERS)]


def _check(mapping: dict[Any, Any], texts_only: bool) -> None:
    seen: dict[str, Any] = {}
    keys = list(mapping)
    for key in keys:
        text = key if isinstance(key, str) else _text(key)
        if text in seen:
            raise ValueError(f"its keys {seen[text]!r} and {key!r} are one key in JSON")
        seen[text] = key
    for key in keys:
        if texts_only and not isinstance(key, str):
            kind = type(key).__name__
            raise TypeError(f"the key {key!r} of a dict is {kind}; JSON has texts alone for keys")
