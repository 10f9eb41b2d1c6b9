"""`RunningCell`: the cell that a session runs, or ran last, as all parts of the session see it."""

from __future__ import annotations

from ...protocol.messages import Result
from .cell_answers import CellAnswers
from .cell_clocks import CellClocks


class RunningCell:
    """The state of one cell at a time.

    Attributes:
        number: of the cell; cells count from 1.
        running_since: when it began, on the monotonic clock; 0 while none runs. Other threads read
            this and `number`.
        code, timeout: of the cell, for a worker that has to be told again.
        cpu_begun: CPU seconds of the workers as it began.
        begun: whether a worker was there to take it.
        clocks: made when somebody asks, for most cells end before.
        result: what the worker said of its end.
        quiet: whether the result came, and nothing with it or in the pipes before it.
    """

    def __init__(self, host_timeout: float) -> None:
        self._host_timeout = host_timeout
        self.number = 0
        self.running_since = 0.0
        self.code = b""
        self.timeout = 0.0
        self.cpu_begun = 0.0
        self.begun = True
        self.answers = CellAnswers()
        self.clear()

    def clear(self) -> None:
        """Forget what came of the last cell."""
        self.quiet = False
        self.result: Result | None = None
        self.clocks: CellClocks | None = None
        if self.answers.kept:
            self.answers = CellAnswers()

    def follow_clocks(self) -> CellClocks:
        """The cell's clocks, started as of when it began."""
        if self.clocks is None:
            begun, cpu = self.running_since, self.cpu_begun
            self.clocks = CellClocks(self.timeout, self._host_timeout, begun, cpu)
            self.quiet = False
        return self.clocks

    def is_running(self, number: int) -> bool:
        """Whether cell `number` runs and has no result yet, so that it may call its host."""
        return number == self.number and self.clocks is not None and self.result is None
