"""`RunningCell`: the cell that a session runs, or ran last, as all parts of the session see it."""

from __future__ import annotations

from ...protocol.messages import Result
from .cell_answers import CellAnswers
from .cell_clocks import CellClocks


class RunningCell:
    """The state of one cell at a time.

    Attributes:
        number: Cells count from 1.
        running_since: The start on the monotonic clock; 0 while no cell runs. Other threads read
            this and `number`.
        code, timeout: Kept for a new worker, if the cell must be sent again.
        cpu_begun: CPU seconds of the workers at the start.
        was_sent: True if a worker received the cell.
        clocks: Made on demand: most cells end before.
        result: The worker's result.
        is_only_result: True if nothing arrived with the result, nor in the pipes before it.
    """

    def __init__(self, host_timeout: float) -> None:
        self._host_timeout = host_timeout
        self.number = 0
        self.running_since = 0.0
        self.code = b""
        self.timeout = 0.0
        self.cpu_begun = 0.0
        self.was_sent = True
        self.answers = CellAnswers()
        self.clear()

    def clear(self) -> None:
        """Forget the result of the last cell."""
        self.is_only_result = False
        self.result: Result | None = None
        self.clocks: CellClocks | None = None
        if self.answers.accepted:
            self.answers = CellAnswers()

    def start_clocks(self) -> CellClocks:
        """The cell's clocks, started at the start of the cell."""
        if self.clocks is None:
            was_sent, cpu = self.running_since, self.cpu_begun
            self.clocks = CellClocks(self.timeout, self._host_timeout, was_sent, cpu)
            self.is_only_result = False
        return self.clocks

    def is_running(self, number: int) -> bool:
        """Return whether cell `number` has no result yet, so that it may call host functions."""
        return number == self.number and self.clocks is not None and self.result is None
