"""`CellClocks`: how long a cell has executed, and how long it has waited for the host.

Pure: times are arguments. The waiting time of a cell is the union of the intervals of its host
calls, less the CPU time that its process used meanwhile: a thread that holds a call open cannot
stop the clock for a thread that computes.
"""

from __future__ import annotations

from ...types import Clock, Usage


class CellClocks:
    """Clocks that start when the cell is sent. Seconds: `now` is monotonic, `cpu` is the session's
    CPU time.
    """

    _waited = 0.0
    _open_calls = 0
    _pause_started = 0.0
    _pause_cpu = 0.0

    def __init__(self, limit: float, host_limit: float, now: float, cpu: float) -> None:
        self._limit = limit
        self._host_limit = host_limit
        self._started = now
        self._cpu_started = cpu

    @property
    def paused(self) -> bool:
        """True if a host call is open."""
        return self._open_calls > 0

    def call_begins(self, now: float, cpu: float) -> None:
        """Count a host call that has arrived."""
        if self._open_calls == 0:
            self._pause_started, self._pause_cpu = now, cpu
        self._open_calls += 1

    def call_ends(self, now: float, cpu: float) -> None:
        """Count the reply to a host call."""
        self._open_calls -= 1
        if self._open_calls == 0:
            self._waited += self._pause(now, cpu)

    def _pause(self, now: float, cpu: float) -> float:
        return max(0.0, (now - self._pause_started) - (cpu - self._pause_cpu))

    def waiting(self, now: float, cpu: float) -> float:
        """Seconds spent waiting so far."""
        return self._waited + (self._pause(now, cpu) if self.paused else 0.0)

    def execution(self, now: float, cpu: float) -> float:
        """Seconds of execution so far."""
        return now - self._started - self.waiting(now, cpu)

    def usage(self, now: float, cpu: float, peak_memory: int) -> Usage:
        """The resources used so far."""
        waited = self.waiting(now, cpu) if self._waited or self._open_calls else 0.0
        used = max(0.0, cpu - self._cpu_started)
        return Usage(now - self._started - waited, waited, used, peak_memory)

    def next_check(self, now: float, cpu: float) -> float:
        """The earliest time at which a clock can expire."""
        check = now + self._limit - self.execution(now, cpu)
        if self.paused:
            check = min(check, now + self._host_limit - self.waiting(now, cpu))
        return check

    def expired(self, now: float, cpu: float) -> Clock | None:
        """The clock that has expired, if any."""
        if self.execution(now, cpu) >= self._limit:
            return "execution"
        if self.waiting(now, cpu) >= self._host_limit:
            return "host_call"
        return None
