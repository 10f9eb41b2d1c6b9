"""Waiting for what comes by no event: a process that ends, a file that goes, a number that sinks.

Where there is an event, a line of output, a reply, a thread that ends, a test waits for that, and
`PATIENCE` is its time-out. A host may stop a machine for seconds, and the other half of the suite
runs beside this one. What never comes is found all the same, only later.
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
# Seconds between looks: first little, for most of it comes at once; then as much as costs nothing
# where a look is at all of /proc.
_FIRST, _MOST = 0.001, 0.05


def comes_to(look: Callable[[], T], expected: T) -> T:
    """What `look` sees as soon as that is `expected`, else what it sees at last."""
    seen = look()
    for pause in _pauses():
        if seen == expected:
            break
        time.sleep(pause)
        seen = look()
    return seen


def eventually(condition: Callable[[], T], told: Callable[[], object] | None = None) -> T:
    """The first value of `condition()` that is true; the test fails if there is none.

    `told`: what it is to say then.
    """
    for pause in _pauses():
        if found := condition():
            return found
        time.sleep(pause)
    raise AssertionError("it did not come about" if told is None else told())


async def until(condition: Callable[[], object]) -> None:
    """As `eventually`, where the test's own loop has to go on meanwhile."""
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
