"""`WorkerState`: whether the worker of a session lives, what workers have used, what was lost."""

from __future__ import annotations

from collections.abc import Callable

from ...protocol import control_channel
from ...types import KillReason


class WorkerState:
    """The worker that a session has now, and what the ones before it have left to tell.

    Attributes:
        notice: init's message that the worker has died, or that init itself is gone.
        eof: nothing more comes from the worker, or is taken from it.
        doomed: its end was ordered; what it still says is not believed to stay.
        silent: it was killed because nothing said that it is dead.
        breach: the limit or rule for which it is ended.
        born: its number, as init counts.
        cpu_of_dead: CPU seconds of the workers before it.
        lost: what recovery could not bring back, in words, until an outcome tells.
        emptied: whether the namespace was emptied between two cells, until an outcome tells.
    """

    def __init__(self) -> None:
        self.born = 1
        self.cpu_of_dead = 0.0
        self._cpu_clock: Callable[[], float] = float
        self.lost: tuple[str, ...] = ()
        self.emptied = False
        self.renew()

    def renew(self) -> None:
        """Another worker is there, of which nothing is known yet."""
        self.notice: control_channel.Message | None = None
        self.eof = self.doomed = self.silent = False
        self.breach: KillReason | None = None

    @property
    def dead(self) -> bool:
        """Whether the worker is gone, or speaks no more."""
        return self.eof or self.notice is not None

    @property
    def init_is_gone(self) -> bool:
        """Whether the session's init has ended, and the session with it."""
        return self.notice is not None and "init" in self.notice

    def follow(self, cpu_clock: Callable[[], float]) -> None:
        """Measure CPU time by `cpu_clock` from now on; OSError of it: the process is gone."""
        self._cpu_clock = cpu_clock

    def cpu_seconds(self) -> float:
        """CPU time of the session's workers so far."""
        try:
            return self.cpu_of_dead + self._cpu_clock()
        except OSError:
            # The process is gone; init's notice brings the time that it used.
            dead = 0.0 if self.notice is None else float(self.notice.get("cpu", 0.0))
            return self.cpu_of_dead + dead
