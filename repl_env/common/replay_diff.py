"""Comparison of two runs of the same code: fields that must be equal, and normalized values."""

from __future__ import annotations

import re
from typing import Any

# Fields of a result that must be equal. Times and memory differ each time, sizes between builds,
# figures between library versions.
RESULT = ("stdout", "stderr", "success", "exception", "value", "locals_snapshot", "truncated")

# The default `repr` of an object contains its address, which differs in each process.
_ADDRESS = re.compile(r"\b0x[0-9a-f]{6,16}\b")


def normalized(value: Any) -> Any:
    """Return the JSON `value` with all object addresses in its texts made equal."""
    if isinstance(value, str):
        return _ADDRESS.sub("0x", value)
    if isinstance(value, dict):
        return {key: normalized(item) for key, item in value.items()}
    if isinstance(value, list):
        return [normalized(item) for item in value]
    return value
