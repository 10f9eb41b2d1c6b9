"""How long a machine may take that has little time for a test: for states that come by no event.

A host may stop a machine for seconds, and the other half of the suite runs beside this one. What
never comes is found all the same, only later.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

# Seconds. None is waited for in a test that passes.
PATIENCE = 60.0
# Seconds for a whole program, of which each part may have to wait.
LONG = 300.0


def comes_to(look: Callable[[], T], expected: T) -> T:
    """What `look` sees as soon as that is `expected`, else what it sees at last."""
    until = time.monotonic() + PATIENCE
    while (seen := look()) != expected and time.monotonic() < until:
        time.sleep(0.01)
    return seen


def wait_for(true: Callable[[], bool]) -> bool:
    """Whether it was `true` within `PATIENCE`."""
    return comes_to(true, True)
