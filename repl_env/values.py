"""Values that cross the border of a session: finite JSON whose text is valid Unicode."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from repl_sandbox.types import JSON


def clean(text: str) -> str:
    """`text` with each lone surrogate replaced by "?": what can be written as UTF-8."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def json_or_none(value: object) -> JSON:
    """`value` as JSON carries it (tuples become lists), or None if JSON cannot carry it."""
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False)
        text.encode("utf-8")
        carried: JSON = json.loads(text)
    except (TypeError, ValueError, RecursionError):
        return None
    return carried
