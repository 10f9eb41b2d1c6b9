"""Steps: a cell from its code to its outcome, where that comes at once.

So it is with most cells, and what is done here each of them pays for. What takes longer, or needs
more than a look, goes on in `Core.run`.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable

from ..types import AnyOutcome, Finished, Usage
from ..wire.messages import HostMessage, Result
from .clocks import Clocks
from .exchange import Ready_
from .incoming import Incoming

# The kernel's counts take microseconds to read. No process is made, filled and ended for its memory
# in less than this; what a shorter cell leaves is in the counts when the next is looked at.
_WORTH_A_LOOK = 0.002
# Nor in less than this, by a worker that used no more CPU time than that: it did nothing else, and
# the host, which has others to serve, was late to take in what it said.
_LATE = 0.02
_WORTH_A_LOOK_OF_CPU = 0.00025
# And what it takes a small session to be copied, which a cell that follows at once has among what
# it used: with that, one that runs a program has 0.75 ms and more.
_OF_A_COPY = 0.0005
# Seconds for which a reading of a worker's CPU clock is as good as a new one, where no copies are
# made between two cells, which take CPU time: each reading takes a step half a microsecond or more.
# The cells of one of eight that a server steps in turn lie some 2 ms apart.
_AS_NEW = 0.005
# Seconds; a cell that took less, with a reading as good as new, has used no more than it took.
_NOT_WORTH_A_READING = 0.0001
# The number of work of ours that is held as a cell is. Cells count from 1, and are never so many.
_ERRAND = (1 << 53) - 1

_monotonic = time.monotonic
_new = object.__new__
_POLLIN = select.POLLIN


class Steps(Incoming):
    """A session whose cells begin, and may end at once."""

    _code = b""
    _timeout = 0.0
    _cpu_begun = 0.0
    _cpu_ended = _ended_at = 0.0  # as read last, when a cell ended
    _begun = True  # whether the worker was there to take the cell
    _errand: tuple[Callable[[int], HostMessage], int] | None = None
    _last_cell = 0

    def begin(
        self,
        code: bytes,
        timeout: float,
        on_output: Callable[[str, str], None] | None,
    ) -> float:
        """Start a cell; the time at which to stop waiting for `at_once`, and go on with `run`."""
        self.cell += 1
        if self._clocks is not None:
            self._begin_cell()
        if on_output is not None or self.output.told:
            self.output.begin(on_output)
        self._code = code
        self._timeout = timeout
        now = self.running_since = _monotonic()
        recent = now - self._ended_at < _AS_NEW and not self.keeps
        self._cpu_begun = self._cpu_ended if recent else self.cpu_seconds()
        self._execute()
        return now + timeout

    def _follow_clocks(self) -> Clocks:
        """Start the cell's clocks, as of when it began: most cells end before anybody asks."""
        begun, cpu = self.running_since, self._cpu_begun
        self._clocks = Clocks(self._timeout, self.limits.host_timeout, begun, cpu)
        self._quiet = False
        return self._clocks

    def begin_errand(
        self, message: Callable[[int], HostMessage], descriptor: int, timeout: float
    ) -> float:
        """Start work of ours in place of a cell: `message`, given its number, with `descriptor`.

        It is held as a cell is, and `run` goes on with it; but it takes no number from the cells.
        Before the descriptor is closed, there has to be `withdraw`.
        """
        self._errand, self._last_cell, self.cell = (message, descriptor), self.cell, _ERRAND - 1
        return self.begin(b"", timeout, None)

    def _end_errand(self) -> None:
        if self._errand is not None:
            self._errand, self.cell = None, self._last_cell

    def _execute(self) -> None:
        if self._notice is not None:
            # The worker is dead and could not be replaced. It is now, as its socket's end is read.
            self._name_descriptors()
            self._begun = False
            return
        if not self._configured:
            self._say_first()
        if self._errand is None:
            self._carry(self.links.connection.execute(self.cell, self._code))
        else:
            message, descriptor = self._errand
            self._lending.offer(descriptor)
            self._carry(self.links.connection.send(message(self.cell)))

    def _carry(self, frame: bytes) -> None:
        """Send what says the cell."""
        self._begun = self.outbox.send(frame)
        if not self._begun:
            self._eof = True

    def at_once(self, ready: Ready_) -> AnyOutcome | None:
        """Take in what came first; the outcome, if that was the cell's result and nothing else.

        So it is with most steps, and what costs time here is paid by each.
        """
        if len(ready) != 1 or ready[0][0] != self.worker_fd or self.outbox.interest != _POLLIN:
            self._follow_clocks()
            self._receive(ready)
            return None
        data = self._read_worker()
        now = _monotonic()
        peak = self.links.connection.empty_result(data, self.cell)
        if peak is None:
            return self._told(data, now)
        return self._ended_plainly(None, peak, now) or self._told_nothing(peak)

    def _told(self, data: bytes, now: float) -> AnyOutcome | None:
        """As `at_once`, where `data` has come and is no empty result."""
        self._follow_clocks()
        self._quiet = self._take_all(data) and self.worker_first
        result = self._result
        if self._quiet and result is not None and result.error is None:
            return self._ended_plainly(result, result.peak_memory, now)
        return None

    def _told_nothing(self, peak: int) -> AnyOutcome | None:
        """As `at_once`, where an empty result has come, and there is more to be looked at."""
        self._follow_clocks()
        self._result = Result(self.cell, None, None, (), (), peak)
        return None

    def _ended_plainly(self, result: Result | None, peak: int, now: float) -> Finished | None:
        """The outcome if nothing is to be looked at besides the result that has come.

        Without a `result` it is that of a cell that told nothing.
        """
        output = self.output
        if (
            self._is_worth_a_look(now - self.running_since, now)
            or self._unacknowledged
            or self._notice
            or self._errand
            or self._eof
            or self._lost
            or self._emptied
            or output.stdout.head_size
            or output.stderr.head_size
            or not self.worker_first
        ):
            return None
        return self._finished(result, peak, now)

    def _is_worth_a_look(self, took: float, now: float) -> bool:
        """Whether a cell that ended at `now` may have met a limit that the kernel counts."""
        if took <= _WORTH_A_LOOK:
            return False
        if took > _LATE:
            return True
        used = self._cpu_at_end(now) - self._cpu_begun
        return used > (_WORTH_A_LOOK_OF_CPU + _OF_A_COPY if self.keeps else _WORTH_A_LOOK_OF_CPU)

    def _cpu_at_end(self, now: float) -> float:
        """CPU time of the workers when a cell ended, at `now`: read when it is first asked for."""
        if self._ended_at != now:
            self._ended_at, self._cpu_ended = now, self.cpu_seconds()
        return self._cpu_ended

    def _finished(self, result: Result | None, peak: int, now: float) -> Finished:
        """As `_ended_plainly`, where nothing is to be looked at.

        All that is not set is as in the classes. They are frozen, and so set each field by a call,
        which takes longer than the rest of a step's end.
        """
        usage, outcome = _new(Usage), _new(Finished)
        costs, fields = usage.__dict__, outcome.__dict__
        costs["execution_seconds"] = took = now - self.running_since
        if took < _NOT_WORTH_A_READING and now - self._ended_at < _AS_NEW and not self.keeps:
            used = took
            self._cpu_ended += took  # or the next reading would charge for it again
        else:
            used = self._cpu_at_end(now) - self._cpu_begun
        costs["cpu_seconds"] = used if used > 0.0 else 0.0
        costs["peak_memory"] = peak
        fields["usage"] = usage
        if result is not None:
            fields["value"], fields["changes"] = result.value, result.changes
            fields["figures"] = result.figures
        self.running_since = 0.0
        add = self._past.add
        add(self.cell)
        return outcome
