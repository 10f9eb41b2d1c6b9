"""`CellExecution`: runs the cells of a session, each from its code to its outcome.

Most cells end soon and send only a result: `try_finish` makes their outcome. `run` handles output
that is still in the pipes, host calls, answers, clocks, limits and deaths.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable, Generator
from dataclasses import replace

from ..protocol.messages import HostMessage, Restored, Result
from ..types import (
    Answer,
    AnyOutcome,
    Clock,
    Figure,
    Finished,
    Killed,
    KillReason,
    Limits,
    Raised,
    State,
    TimedOut,
    Usage,
)
from .calls import HostCallHandler
from .io import ReadyDescriptors, SessionIO, ShieldedOperations
from .output import OutputCapture
from .recovery import INIT_TIMEOUT, Recovery
from .running_cell import RunningCell

# `outcome_of`: the outcome of a cell, from the worker's result and the host's observations.

# These count as the reason of a death even if the cell's time was over too: the kill that ends such
# a cell reads as a signal, and a limit that was passed meanwhile is the better explanation.
_OUTWEIGH_TIME = ("memory", "cpu", "protocol", "machine")


def outcome_of(
    result: Result | None,
    output: tuple[str, str],
    answers: tuple[Answer, ...],
    usage: Usage,
    state: State,
    *,
    expired: Clock | None,
    died: KillReason | None,
) -> AnyOutcome:
    """Return the outcome of a cell. `result`: the worker's, None if there is none.

    `expired`: the clock that expired, `died`: the reason of the worker's death, if any.
    """
    if result is None or died is not None:
        if expired is not None and died not in _OUTWEIGH_TIME:
            return TimedOut(*output, answers=answers, usage=usage, state=state, clock=expired)
        reason = died or "protocol"
        return Killed(*output, answers=answers, usage=usage, state=state, reason=reason)
    shown = (
        *output,
        result.value,
        result.error,
        result.changes,
        tuple(map(Figure, result.figures)),
        answers,
        usage,
        state,
    )
    displays = result.displays
    if expired is not None:
        return TimedOut(*shown, displays=displays, clock=expired)
    if result.error is not None:
        return Raised(*shown, displays=displays)
    return Finished(*shown, displays=displays)


# The cell number of an internal job, which runs like a cell. Cells count from 1 and never reach it.
_JOB = (1 << 53) - 1

_monotonic = time.monotonic
_new = object.__new__
_POLLIN = select.POLLIN


class CellExecution:
    """The cells of one session, one at a time: `begin`, wait, `try_finish`, and `run` if
    necessary.
    """

    def __init__(
        self,
        io: SessionIO,
        cell: RunningCell,
        calls: HostCallHandler,
        output: OutputCapture,
        recovery: Recovery,
        completion: ShieldedOperations,
        limits: Limits,
    ) -> None:
        self._io, self._cell, self._output = io, cell, output
        self._worker, self._init = io.worker, io.init
        self._calls, self._recovery, self._completion = calls, recovery, completion
        self._grace = limits.grace
        self.limit_hits = recovery.limit_hits
        self._job: tuple[Callable[[int], HostMessage], int] | None = None
        self._last_number = 0  # the number of the last cell, while a job runs
        self._interrupted = False

    # ── the usual cell ────────────────────────────────────────────────────────────────────────

    def begin(
        self, code: bytes, timeout: float, on_output: Callable[[str, str], None] | None
    ) -> float:
        """Start a cell. Return the time at which to stop waiting and call `run`."""
        cell, output = self._cell, self._output
        cell.number += 1
        if cell.clocks is not None:
            cell.clear()
        if on_output is not None or output.is_streaming:
            output.begin(on_output)
        cell.code, cell.timeout = code, timeout
        now = cell.running_since = _monotonic()
        cell.cpu_begun = self._worker.cpu_seconds()
        self._send()
        return now + timeout

    def _send(self) -> None:
        io, cell = self._io, self._cell
        if self._worker.notice is not None:
            # The worker is dead and could not be replaced. `run` tries again when it reads the end
            # of the socket.
            io.update_descriptors()
            cell.was_sent = False
            return
        if not io.configuration.is_known:
            io.send_configuration()
        if self._job is None:
            frame = io.links.connection.execute(cell.number, cell.code)
        else:
            message, descriptor = self._job
            io.offer(descriptor)
            frame = io.links.connection.send(message(cell.number))
        cell.was_sent = io.send_frame(frame)

    def try_finish(self, ready: ReadyDescriptors) -> AnyOutcome | None:
        """Process the first input; return the outcome if that was the cell's result and nothing
        else.
        """
        io, cell = self._io, self._cell
        if len(ready) != 1 or ready[0][0] != io.worker_fd or io.send_buffer.interest != _POLLIN:
            cell.start_clocks()
            io.receive(ready)
            return None
        data = io.read_worker()
        now = _monotonic()
        peak = io.links.connection.empty_result(data, cell.number)
        if peak is not None:
            outcome = self._simple_outcome(None, peak, now)
            if outcome is None:
                cell.start_clocks()
                cell.result = Result(cell.number, None, None, (), (), peak)
            return outcome
        cell.start_clocks()
        cell.is_only_result = io.take(data)
        result = cell.result
        if cell.is_only_result and result is not None and result.error is None:
            return self._simple_outcome(result, result.peak_memory, now)
        return None

    def _simple_outcome(self, result: Result | None, peak: int, now: float) -> Finished | None:
        """Return the outcome if the result is all there is to consider.

        No `result`: the worker reported an empty result.
        """
        worker, output = self._worker, self._output
        took = now - self._cell.running_since
        used = worker.cpu_seconds() - self._cell.cpu_begun
        if (
            self.limit_hits.needs_check(took, used)
            or self._init.unacknowledged
            or self._job
            or worker.notice
            or worker.eof
            or worker.lost
            or worker.emptied
            or worker.died_before
            or output.stdout.head_size
            or output.stderr.head_size
        ):
            return None
        # Fields that are not set have the defaults of the classes. Frozen dataclasses set each
        # field by a call, which takes longer than the rest of the end of a step.
        usage, outcome = _new(Usage), _new(Finished)
        costs, fields = usage.__dict__, outcome.__dict__
        costs["execution_seconds"] = took
        costs["cpu_seconds"] = used if used > 0.0 else 0.0
        costs["peak_memory"] = peak
        fields["usage"] = usage
        if result is not None:
            fields["value"], fields["changes"] = result.value, result.changes
            if result.figures:
                fields["figures"] = tuple(map(Figure, result.figures))
            if result.displays:
                fields["displays"] = result.displays
        self._cell.running_since = 0.0
        add = self._recovery.history.add
        add(self._cell.number)
        return outcome

    # ── any cell ──────────────────────────────────────────────────────────────────────────────

    def run(self) -> Generator[float, ReadyDescriptors, AnyOutcome]:
        """Run the cell that `begin` started to its outcome."""
        state: State = "kept"
        cell, worker = self._cell, self._worker
        clocks = cell.start_clocks()
        if not cell.was_sent:
            # The worker died between cells, so this cell has not begun: start another worker.
            state = yield from self._completion.of(self._recovery.replace())
            self._send()
        expired: Clock | None = None
        wake = clocks.next_check(cell.running_since, worker.cpu_seconds())
        while (cell.result is None or worker.kill_ordered) and not worker.dead:
            self._output.check()
            self._io.receive((yield wake))
            now = _monotonic()
            if now < wake:
                continue
            cpu = worker.cpu_seconds()
            expired = expired or clocks.expired(now, cpu)
            wake = clocks.next_check(now, cpu) if expired is None else self._handle_overrun(now)
        outcome = yield from self._completion.of(self.finish(expired, state))
        self._output.check()
        return outcome

    def _handle_overrun(self, now: float) -> float:
        """Interrupt a cell whose time is over, later kill its worker. Return the time of the next
        check.
        """
        if not self._interrupted:
            self._interrupted = True
            self._init.interrupt()
            return now + self._grace
        return self._recovery.order_kill()

    def finish(
        self, expired: Clock | None, state: State
    ) -> Generator[float, ReadyDescriptors, AnyOutcome]:
        """Return the outcome of a cell that has its result, or whose worker is dead."""
        reason: KillReason | None = None
        status = 0
        cell, worker = self._cell, self._worker
        clocks = cell.start_clocks()
        try:
            self._calls.cancel_open()
            if self._init.unacknowledged:
                yield from self._await_interrupts()
            now, cpu = _monotonic(), worker.cpu_seconds()
            if worker.dead:
                yield from self._recovery.collect_death()
                reason = self._recovery.death_reason(expired)
                status = 0 if worker.notice is None else worker.notice["status"]
                cpu = worker.cpu_seconds()
                forged = worker.breach is not None or reason == "protocol"
                complete = cell.result is not None and not forged
                state = yield from self._recovery.revive()
                if complete and self._has_snapshot(state):
                    reason, state = None, "kept"
                    self._recovery.history.add(cell.number)
            elif self._job is None:
                self._recovery.history.add(cell.number)
            else:
                self._recovery.history.assign()
            if not cell.is_only_result:
                self._output.drain()
        finally:
            cell.running_since = 0.0
            self._interrupted = False
        if self._job is None and worker.emptied:
            state, worker.emptied = "restarted", False
        output = self._output.end(cell.number if self._job is None else None)
        peak = 0 if cell.result is None else cell.result.peak_memory
        usage, answers = clocks.usage(now, cpu, peak), cell.answers.all()
        outcome = outcome_of(
            cell.result, output, answers, usage, state, expired=expired, died=reason
        )
        if isinstance(outcome, Killed) and outcome.reason == "signal":
            outcome = replace(outcome, signal=os.WTERMSIG(status))
        if worker.lost:
            outcome, worker.lost = replace(outcome, lost=worker.lost), ()
        if self._job is None and worker.died_before:
            outcome, worker.died_before = replace(outcome, died_before=worker.died_before), None
        self.end_job()
        return self.limit_hits.add_to(outcome)

    def _await_interrupts(self) -> Generator[float, ReadyDescriptors, None]:
        """Wait until init has sent all interrupts of this cell, so that none hits the next cell."""
        deadline = _monotonic() + INIT_TIMEOUT
        while self._init.unacknowledged > 0 and not self._worker.dead:
            self._io.receive((yield deadline))
            if _monotonic() > deadline:
                self._init.kill_worker()
                self._worker.eof = True  # nothing more is read from it

    def _has_snapshot(self, state: State) -> bool:
        """Return whether a snapshot had the state after the cell before the worker died."""
        copy = self._io.answer
        return (
            state == "rolled_back" and isinstance(copy, Restored) and copy.cell == self._cell.number
        )

    # ── internal jobs ─────────────────────────────────────────────────────────────────────────

    def begin_job(
        self, message: Callable[[int], HostMessage], descriptor: int, timeout: float
    ) -> float:
        """Start an internal job in place of a cell: `message`, called with its number, and
        `descriptor`.

        The job runs like a cell, and `run` continues it, but it takes no cell number. Call
        `SessionIO.withdraw` before the descriptor is closed.
        """
        self._job, self._last_number = (message, descriptor), self._cell.number
        self._cell.number = _JOB - 1
        return self.begin(b"", timeout, None)

    def end_job(self) -> None:
        """Leave the job: the next one to run is a cell."""
        if self._job is not None:
            self._job, self._cell.number = None, self._last_number
