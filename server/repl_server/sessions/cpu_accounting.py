"""`CPUAccounting`: CPU time of one session's processes, booked under its tenant, once."""

from __future__ import annotations

import math
from typing import Any

from ..quotas.usage_meters import UsageMeter
from ..telemetry.recorder import Telemetry
from ..tenants.tenant import Tenant

# Between two looks, of processes that nobody asked for anything: what follows a step, and rounding.
_IDLING = 0.02


class CPUAccounting:
    """What the processes of a session have used, those of its branches among them.

    A step says what its own process used. Children, and threads that run on between steps, are
    found by looking at all processes now and then.
    """

    def __init__(self, tenant: Tenant, meter: UsageMeter, telemetry: Telemetry) -> None:
        self._tenant, self._meter, self._metrics = tenant, meter, telemetry.metrics
        self._is_limited = meter.counts_cpu
        self._booked = 0.0

    def add_step(self, seconds: float) -> None:
        """A step used so much."""
        self._booked += seconds
        self._book(seconds)

    def observe(self, total: float) -> bool:
        """All processes have used `total` so far; whether some are busy, as far as nobody knew."""
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
    """What a step says that it used; environments of others may say anything there."""
    usage = observation.metadata.get("usage")
    seconds = usage.get("cpu_seconds") if isinstance(usage, dict) else None
    return seconds if isinstance(seconds, (int, float)) and 0 <= seconds < math.inf else 0.0
