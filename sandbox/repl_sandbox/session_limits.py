"""`Limits`: the limits of one session; sizes and times as callers write them."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from operator import index

from .set_module import set_module

_UNITS = {"": 1, **{unit: 1000**n for n, unit in enumerate("KMGT", 1)}}
_UNITS |= {f"{unit}I": 1024**n for n, unit in enumerate("KMGT", 1)}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]I?)?B?\s*", re.IGNORECASE)


# No machine has more, and the kernel's signed 64-bit sizes could overflow.
_LARGEST = 1 << 50


def parse_size(size: int | str, name: str = "size") -> int:
    """Return the bytes of `size`: an int, or text such as "512MiB" or "1.5 GB"; at most 1 PiB.

    Raises:
        TypeError, ValueError: naming the argument `name`.
    """
    if isinstance(size, bool) or not isinstance(size, (int, str)):
        raise TypeError(
            f"{name} must be an int or a str such as '512MiB', not {type(size).__name__}"
        )
    if isinstance(size, str):
        match = _SIZE.fullmatch(size)
        if match is None:
            raise ValueError(f"{name}={size!r} is not a size; write bytes or for example '512MiB'")
        size = int(float(match[1]) * _UNITS[(match[2] or "").upper()])
    if not 0 < size <= _LARGEST:
        raise ValueError(f"{name} must be more than 0 and at most 1 PiB")
    return size


# PID_MAX_LIMIT: the number of process ids on a 64-bit Linux.
_MAX_COUNTED = 1 << 22
# The stack of one thread is 8 MiB, and an ordinary cell with its snapshot and a child process takes
# some more: with less, whether a cell works depends on the allocator's luck.
_MIN_MEMORY = 16 << 20


@set_module("repl_sandbox")
@dataclass(frozen=True)
class Limits:
    """The limits of one session. Sizes are bytes or text such as "512MiB"; times are seconds.

    `memory` (at least 16 MiB) counts all processes of the session beyond the template it was forked
    from; `open_files` is of each process, three of them reserved for recovery, and at most half of
    this process's own where sessions share its user (`ulimit -n`); `cpu_seconds` (None: no limit)
    counts over the session's life; `output` bounds the kept output of a session. A cell may execute
    for `timeout`, is then interrupted, and has `grace` to end; its calls of host functions may take
    `host_timeout` in all.
    """

    memory: int | str = "1GiB"
    processes: int = 64
    open_files: int = 256
    file_size: int | str = "256MiB"
    workspace: int | str = "256MiB"
    output: int | str = "64MiB"
    cpu_seconds: float | None = None
    timeout: float = 30.0
    grace: float = 0.5
    host_timeout: float = 300.0

    def __post_init__(self) -> None:
        for name in ("memory", "file_size", "workspace", "output"):
            object.__setattr__(self, name, parse_size(getattr(self, name), name))
        if int(self.memory) < _MIN_MEMORY:
            raise ValueError(f"memory must be at least {_MIN_MEMORY >> 20} MiB")
        for name, least in (("processes", 1), ("open_files", 16)):
            count = getattr(self, name)
            if isinstance(count, bool) or not isinstance(count, int):
                raise TypeError(f"{name} must be an int, not {type(count).__name__}")
            if not least <= count <= _MAX_COUNTED:
                raise ValueError(f"{name} must be from {least} to {_MAX_COUNTED:,}")
        for name in ("timeout", "grace", "host_timeout"):
            object.__setattr__(self, name, check_seconds(getattr(self, name), name))
        if self.cpu_seconds is not None:
            object.__setattr__(self, "cpu_seconds", check_seconds(self.cpu_seconds, "cpu_seconds"))


def check_seconds(value: float, name: str) -> float:
    """Return `value`, a number of any type, as a float; raise TypeError or ValueError for a bad
    time.

    A time is finite and above 0.
    """
    if isinstance(value, bool) or not hasattr(value, "__float__"):
        raise TypeError(f"{name} must be a number of seconds, not {type(value).__name__}")
    try:
        seconds = float(value)
    except (TypeError, ValueError, OverflowError):  # an array of several numbers, or 10**400
        seconds = math.nan
    if not (math.isfinite(seconds) and seconds > 0):
        raise ValueError(f"{name} must be a finite number of seconds above 0")
    return seconds


# The largest seed that the session's process accepts; a larger one would break the protocol.
_MAX_SEED = (1 << 63) - 1


def check_seed(seed: int | None) -> int | None:
    """Return `seed` as an int, or None; else raise TypeError, or ValueError for 2**63 and more.

    Integers of any type: seeds are often drawn, and numpy draws its own integer types.
    """
    if seed is None:
        return None
    try:
        drawn = -1 if isinstance(seed, bool) else index(seed)
    except TypeError:
        drawn = -1
    if drawn < 0:
        raise TypeError(f"seed must be an int of at least 0, not {seed!r}")
    if drawn > _MAX_SEED:
        raise ValueError("seed must be less than 2**63")
    return drawn
