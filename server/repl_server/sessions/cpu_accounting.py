"""`CPUAccounting`: charges the CPU time of a session's processes to its tenant, once."""

from __future__ import annotations

import math
from typing import Any

from ..quotas.usage_meters import UsageMeter
from ..telemetry.recorder import Telemetry
from ..tenants.tenant import Tenant

# CPU seconds between two observations that do not count as busy: work after a step, and rounding.
_IDLING = 0.02


class CPUAccounting:
    """The CPU time of a session's processes, including those of its branches.

    Each step reports the usage of its own process. Observations of all processes find the usage of
    child processes, and of threads that run between steps.
    """

    def __init__(self, tenant: Tenant, meter: UsageMeter, telemetry: Telemetry) -> None:
        self._tenant, self._meter, self._metrics = tenant, meter, telemetry.metrics
        self._is_limited = meter.counts_cpu
        self._booked = 0.0

    def add_step(self, seconds: float) -> None:
        """Charge the usage that a step reported."""
        self._booked += seconds
        self._book(seconds)

    def observe(self, total: float) -> bool:
        """Charge the rest of `total`, the usage of all processes so far; whether any were busy."""
        more = total - self._booked
        if more <= 0:
            return False
        self._booked = total
        self._book(more)
        return more > _IDLING

    def _book(self, seconds: float) -> None:
        if self._is_limited:
            self._meter.spend_cpu(seconds)
        self._metrics.cpu(self._tenant, seconds)


def seconds_of(observation: Any) -> float:
    """The CPU time that an observation reports; custom environments may report anything."""
    usage = observation.metadata.get("usage")
    seconds = usage.get("cpu_seconds") if isinstance(usage, dict) else None
    return seconds if isinstance(seconds, (int, float)) and 0 <= seconds < math.inf else 0.0
