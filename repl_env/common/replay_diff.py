"""Two runs of the same code: what must be the same in them, and what differs in any case."""

from __future__ import annotations

import re
from typing import Any

# What results of the same code must have in common. Not here: times and memory, which differ each
# time; sizes, which differ between builds; figures, which differ between versions of libraries.
RESULT = ("stdout", "stderr", "success", "exception", "value", "locals_snapshot", "truncated")

# As `repr` of an object without one of its own has it: another number in each process.
_ADDRESS = re.compile(r"\b0x[0-9a-f]{6,16}\b")


def normalized(value: Any) -> Any:
    """`value`, JSON, with every address of an object in its texts the same."""
    if isinstance(value, str):
        return _ADDRESS.sub("0x", value)
    if isinstance(value, dict):
        return {key: normalized(item) for key, item in value.items()}
    if isinstance(value, list):
        return [normalized(item) for item in value]
    return value
