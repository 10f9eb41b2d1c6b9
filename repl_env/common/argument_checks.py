"""Argument checks whose errors name the argument and the accepted values.

This module needs no engine; the engine checks durations (`session_limits.check_seconds`).
"""

from __future__ import annotations

import math
import operator
import os
from pathlib import Path
from typing import Any


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
