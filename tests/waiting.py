"""Waiting for conditions without an event: a process that ends, a file that disappears, a number
that shrinks.

Where there is an event (a line of output, a reply, a thread that ends) a test waits for the event,
and `PATIENCE` is its timeout. Load may stop a machine for seconds, and the other half of the suite
runs at the same time. A condition that never holds fails the test, only later.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

T = TypeVar("T")

# Seconds. None is waited for in a test that passes.
PATIENCE = 120.0
# Seconds for a whole program, of which each part may have to wait.
LONG = 300.0
# Seconds between two checks: short at first, because most conditions hold soon; later as long as
# costs nothing even if a check reads all of /proc.
_FIRST, _MOST = 0.001, 0.05


def comes_to(look: Callable[[], T], expected: T) -> T:
    """The value of `look` once it equals `expected`, otherwise its last value."""
    seen = look()
    for pause in _pauses():
        if seen == expected:
            break
        time.sleep(pause)
        seen = look()
    return seen


def eventually(condition: Callable[[], T], told: Callable[[], object] | None = None) -> T:
    """The first true value of `condition()`; the test fails if there is none.

    `told`: returns the text of the failure.
    """
    for pause in _pauses():
        if found := condition():
            return found
        time.sleep(pause)
    raise AssertionError("it did not come about" if told is None else told())


async def until(condition: Callable[[], object]) -> None:
    """Like `eventually`, while the test's event loop goes on."""
    for pause in _pauses():
        if condition():
            return
        await asyncio.sleep(pause)
    raise AssertionError("it did not come about")


def _pauses() -> Iterator[float]:
    """Between one look and the next, until patience is at its end; and none before the last."""
    end, pause = time.monotonic() + PATIENCE, _FIRST
    while time.monotonic() < end:
        yield pause
        pause = min(2 * pause, _MOST)
    yield 0.0  # the machine may have stood still since the look before
