"""A signal that arrives in C code right before a wait.

Python runs handlers between two instructions, so the signal does not end the wait.
"""

from __future__ import annotations

import ctypes
import itertools
import operator
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from tests.waiting import PATIENCE

_raise = ctypes.CDLL(None)["raise"]


def struck(wait: Callable[..., Any], *arguments: Any) -> Any:
    """The result of `wait`, a C function, with a SIGINT right before it: only C code runs in
    between.
    """
    calls = (_raise, signal.SIGINT), (wait, *arguments)
    return list(itertools.starmap(operator.call, calls))[-1]


def told_by(program: str) -> list[str]:
    """The words that `program` prints; it has to end by itself and without an error."""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.stderr == ""
    return done.stdout.split()
