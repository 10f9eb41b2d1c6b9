"""`WorkerState`: whether a session's worker lives, the CPU time of its workers, and lost
objects.
"""

from __future__ import annotations

from collections.abc import Callable

from ...protocol import control_channel
from ...types import KillReason


class WorkerState:
    """The current worker of a session, and the reports on the workers before it.

    Attributes:
        notice: Init's message that the worker has died, or that init itself is gone.
        eof: True if nothing more comes from the worker, or is read from it.
        kill_ordered: True if its end was requested; a result that it still sends does not count.
        is_unresponsive: True if it was killed because no notice of its death came.
        breach: The limit or rule because of which it is killed.
        worker_number: Its number, as init counts.
        cpu_of_ended: CPU seconds of the workers before it.
        lost: Descriptions of what recovery could not restore, until an outcome reports them.
        emptied: True if the namespace was emptied between two cells, until an outcome reports it.
    """

    def __init__(self) -> None:
        self.worker_number = 1
        self.cpu_of_ended = 0.0
        self._cpu_clock: Callable[[], float] = float
        self.lost: tuple[str, ...] = ()
        self.emptied = False
        self.reset()

    def reset(self) -> None:
        """Note that there is another worker, of which nothing is known yet."""
        self.notice: control_channel.Message | None = None
        self.eof = self.kill_ordered = self.is_unresponsive = False
        self.breach: KillReason | None = None

    @property
    def dead(self) -> bool:
        """True if the worker is gone, or its socket has ended."""
        return self.eof or self.notice is not None

    @property
    def init_is_gone(self) -> bool:
        """True if the session's init has ended, and with it the session."""
        return self.notice is not None and "init" in self.notice

    def set_cpu_clock(self, cpu_clock: Callable[[], float]) -> None:
        """Measure CPU time by `cpu_clock` from now on. Reading it raises OSError if the process is
        gone.
        """
        self._cpu_clock = cpu_clock

    def cpu_seconds(self) -> float:
        """The CPU time of the session's workers so far."""
        try:
            return self.cpu_of_ended + self._cpu_clock()
        except OSError:
            # The process is gone; init's notice will have its CPU time.
            of_dead = 0.0 if self.notice is None else float(self.notice.get("cpu", 0.0))
            return self.cpu_of_ended + of_dead
