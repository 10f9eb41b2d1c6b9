"""A signal that strikes where Python does not look for one before a wait has begun.

Handlers run between two instructions of Python's, so the wait is not ended by the signal.
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
    """What `wait` returns, a function of C, with a SIGINT just before: between them runs only C."""
    calls = (_raise, signal.SIGINT), (wait, *arguments)
    return list(itertools.starmap(operator.call, calls))[-1]


def told_by(program: str) -> list[str]:
    """The words that `program` prints, which is to end by itself and without an error."""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.stderr == ""
    return done.stdout.split()
