"""Counts and measurements of a soak."""

from __future__ import annotations

import statistics
import threading
from collections import Counter
from typing import Any


class Figures:
    """Counts of steps by name, kills, and the seconds of recoveries; for all threads."""

    def __init__(self) -> None:
        self.steps: Counter[str] = Counter()
        self.kills = 0
        self.lates = 0
        self.shallows = 0
        self._recoveries: list[float] = []
        self._lock = threading.Lock()

    def step(self, name: str) -> None:
        """A step was done, and all was as it must be."""
        with self._lock:
            self.steps[name.strip("_")] += 1

    def kill(self) -> None:
        """A worker was ended, by itself or from outside."""
        with self._lock:
            self.kills += 1

    def late(self) -> None:
        """A worker was ended because no interrupt came to anything within the grace period."""
        with self._lock:
            self.kills += 1
            self.lates += 1

    def shallow(self) -> None:
        """The state of a session that was killed during a snapshot cannot be rolled back to. The
        session is unchanged.
        """
        with self._lock:
            self.shallows += 1

    def recovery(self, seconds: float) -> None:
        """The time from before the end of a worker until the host had its outcome."""
        with self._lock:
            self._recoveries.append(seconds)

    def told(self) -> dict[str, Any]:
        """All figures, formatted; times in milliseconds."""
        parts = statistics.quantiles(self._recoveries, n=100) if self._recoveries[1:] else [0] * 99
        return {
            "steps": self.steps.total(),
            "kills": self.kills,
            "interrupts too late": self.lates,
            "states lost to shots amid a copy": self.shallows,
            "recoveries timed": len(self._recoveries),
            "recovery p50 ms": round(parts[49] * 1e3, 2),
            "recovery p99 ms": round(parts[98] * 1e3, 2),
            "by step": dict(self.steps.most_common()),
        }
