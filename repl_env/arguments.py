"""Arguments, checked where they are given: an error names the argument, and what it must be.

Seconds are checked by the engine's `repl_sandbox.types.check_seconds`. Nothing here needs it.
"""

from __future__ import annotations

import math
import os
from typing import Any


def at_least(value: Any, least: int, name: str) -> int:
    """`value`, or TypeError / ValueError naming the argument."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, not {type(value).__name__}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, not {value}")
    return value


def finite(value: Any, name: str) -> float:
    """`value`, or TypeError / ValueError naming the argument."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a number, not {type(value).__name__}")
    if not math.isfinite(value):
        raise ValueError(f"{name} must be finite, not {value}")
    return value


def one_of(value: str, allowed: tuple[str, ...], name: str) -> None:
    """ValueError naming the argument, unless `value` is one of `allowed`."""
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(allowed)}, not {value!r}")


def of_kind(value: object, kind: type, name: str) -> None:
    """TypeError naming the argument, unless `value` is a `kind`."""
    if not isinstance(value, kind):
        raise TypeError(f"{name} must be a {kind.__name__}, not {type(value).__name__}")


def check_path(value: object, name: str) -> None:
    """TypeError naming the argument, unless `value` is a path."""
    if not isinstance(value, (str, os.PathLike)):
        raise TypeError(f"{name} must be a str or a Path, not {type(value).__name__}")


def check_callable(value: object, name: str) -> None:
    """TypeError naming the argument, unless `value` can be called."""
    if not callable(value):
        raise TypeError(f"{name} must be callable, not {type(value).__name__}")
