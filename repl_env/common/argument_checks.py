"""Arguments, checked where they are given: an error names the argument, and what it must be.

Seconds are checked by the engine's `repl_sandbox.types.check_seconds`. Nothing here needs it.
"""

from __future__ import annotations

import math
import operator
import os
from pathlib import Path
from typing import Any


def at_least(value: Any, least: int, name: str) -> int:
    """`value`, of any kind of int, as one; or TypeError / ValueError naming the argument."""
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
    """`value`, of any kind of number, as one of Python's; TypeError, ValueError naming it."""
    if isinstance(value, bool) or not hasattr(value, "__float__"):
        raise TypeError(f"{name} must be a number, not {type(value).__name__}")
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):  # an array of several; 10**400
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"{name} must be finite, not {value!r:.80}")
    return value if isinstance(value, int) else number


def above_zero(value: Any, name: str) -> float:
    """`value`, of any kind of number, as a float; TypeError, ValueError naming it."""
    number = finite(value, name)
    if number <= 0:
        raise ValueError(f"{name} must be above 0, not {value}")
    return float(number)


def one_timeout(timeout_s: float | None, timeout: float | None) -> float | None:
    """The time-out of a call, which may be given by either of these names.

    Raises:
        TypeError: by both.
        TypeError, ValueError: `timeout` is no time; who takes `timeout_s` checks that.
    """
    if timeout is None:
        return timeout_s
    if timeout_s is not None:
        raise TypeError("timeout_s and timeout are two names of one argument: give one of them")
    return above_zero(timeout, "timeout")


def one_of(value: str, allowed: tuple[str, ...], name: str) -> None:
    """ValueError naming the argument, unless `value` is one of `allowed`."""
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(allowed)}, not {value!r}")


def of_kind(value: object, kind: type, name: str) -> None:
    """TypeError naming the argument, unless `value` is a `kind`."""
    if not isinstance(value, kind):
        raise TypeError(f"{name} must be a {kind.__name__}, not {type(value).__name__}")


def of_public_kind(value: object, kind: type, name: str, *, home: str = "repl_env") -> None:
    """As `of_kind`, of a class that the caller imports: the error says from where, `home`."""
    if not isinstance(value, kind):
        told = f"{name} must be a {kind.__name__} (from {home} import {kind.__name__})"
        raise TypeError(f"{told}, not {type(value).__name__}")


def check_path(value: object, name: str) -> None:
    """TypeError naming the argument, unless `value` is a path."""
    if not isinstance(value, (str, os.PathLike)):
        raise TypeError(f"{name} must be a str or a Path, not {type(value).__name__}")


def as_path(value: Any, name: str) -> Path:
    """`value`, a str or a path, as one; TypeError naming the argument if it is neither."""
    check_path(value, name)
    return Path(value)


def check_callable(value: object, name: str) -> None:
    """TypeError naming the argument, unless `value` can be called."""
    if not callable(value):
        raise TypeError(f"{name} must be callable, not {type(value).__name__}")
