"""Limits and checks of the tests of branches."""

from __future__ import annotations

import os
from collections.abc import Callable

from repl_sandbox import Limits
from tests.waiting import eventually

TIERS = ["jailed", "confined"]
LIMITS = Limits(timeout=60)
SECONDS = 60  # timeout for events that take milliseconds on an idle processor
CRASH = "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)"


def descriptors() -> int:
    """The number of open descriptors: the minimum of many counts, because the watchdog opens some
    too.
    """
    return min(len(os.listdir("/proc/self/fd")) for _ in range(100))


def comes_to_at_most(before: tuple[int, ...], held: Callable[[], tuple[int, ...]]) -> None:
    """Nothing of what `held` counts has become more.

    Counting is repeated until it settles: the watchdog may keep a descriptor open while it has no
    processor, and an earlier test's end may come at any moment.
    """
    eventually(lambda: all(now <= then for now, then in zip(held(), before, strict=True)))
