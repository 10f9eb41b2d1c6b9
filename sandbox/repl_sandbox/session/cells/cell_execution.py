"""`CellExecution`: runs a session's cells, each from its code to its outcome.

Most cells end at once and have nothing to tell but a result: `try_finish` makes the outcome of
those. Output to be waited for, calls, answers, clocks, limits and deaths are for `run`.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Generator
from dataclasses import replace

from ...protocol.messages import HostMessage, Restored, Result
from ...types import AnyOutcome, Clock, Finished, KillReason, Limits, State, Usage
from ..host_functions.host_call_handler import HostCallHandler
from ..io import Ready_, SessionIO
from ..output import OutputCapture
from ..recovery import INIT_TIMEOUT, NOTICE_TIMEOUT, Recovery
from ..shielded_operations import ShieldedOperations
from .limit_hits import LimitHits
from .outcome_builder import outcome_of
from .running_cell import RunningCell

# The number of an internal job, which is held as a cell is. Cells count from 1, and are never so
# many.
_JOB = (1 << 53) - 1

_monotonic = time.monotonic
_new = object.__new__
_POLLIN = select.POLLIN


class CellExecution:
    """Those of one session, one at a time: `begin`, wait, `try_finish`, and `run` if need be."""

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
        self.limit_hits = LimitHits(io.links, cell, copies=recovery.keeps)
        self._job: tuple[Callable[[int], HostMessage], int] | None = None
        self._last_number = 0  # of a cell, while a job runs
        self._grace_over: float | None = None

    # ── the usual cell ────────────────────────────────────────────────────────────────────────

    def begin(
        self, code: bytes, timeout: float, on_output: Callable[[str, str], None] | None
    ) -> float:
        """Start a cell. Returns when to stop waiting, and go on with `run`."""
        cell, output = self._cell, self._output
        cell.number += 1
        if cell.clocks is not None:
            cell.clear()
        if on_output is not None or output.told:
            output.begin(on_output)
        cell.code, cell.timeout = code, timeout
        now = cell.running_since = _monotonic()
        cell.cpu_begun = self._worker.cpu_seconds()
        self._send()
        return now + timeout

    def _send(self) -> None:
        io, cell = self._io, self._cell
        if self._worker.notice is not None:
            # The worker is dead and could not be replaced. It is now, as its socket's end is read.
            io.name_descriptors()
            cell.begun = False
            return
        if not io.configuration.known:
            io.say_first()
        if self._job is None:
            frame = io.links.connection.execute(cell.number, cell.code)
        else:
            message, descriptor = self._job
            io.offer(descriptor)
            frame = io.links.connection.send(message(cell.number))
        cell.begun = io.send_frame(frame)

    def try_finish(self, ready: Ready_) -> AnyOutcome | None:
        """Take in what came first; the outcome, if that was the cell's result and nothing else."""
        io, cell = self._io, self._cell
        if len(ready) != 1 or ready[0][0] != io.worker_fd or io.outbox.interest != _POLLIN:
            cell.follow_clocks()
            io.receive(ready)
            return None
        data = io.read_worker()
        now = _monotonic()
        peak = io.links.connection.empty_result(data, cell.number)
        if peak is not None:
            outcome = self._usual_outcome(None, peak, now)
            if outcome is None:
                cell.follow_clocks()
                cell.result = Result(cell.number, None, None, (), (), peak)
            return outcome
        cell.follow_clocks()
        cell.quiet = io.take(data)
        result = cell.result
        if cell.quiet and result is not None and result.error is None:
            return self._usual_outcome(result, result.peak_memory, now)
        return None

    def _usual_outcome(self, result: Result | None, peak: int, now: float) -> Finished | None:
        """The outcome if nothing is to be looked at besides the result that has come.

        Without a `result` it is that of a cell that told nothing.
        """
        worker, output = self._worker, self._output
        took = now - self._cell.running_since
        used = worker.cpu_seconds() - self._cell.cpu_begun
        if (
            self.limit_hits.is_worth_a_look(took, used)
            or self._init.unacknowledged
            or self._job
            or worker.notice
            or worker.eof
            or worker.lost
            or worker.emptied
            or output.stdout.head_size
            or output.stderr.head_size
        ):
            return None
        # All that is not set is as in the classes. They are frozen, and so set each field by a
        # call, which takes longer than the rest of a step's end.
        usage, outcome = _new(Usage), _new(Finished)
        costs, fields = usage.__dict__, outcome.__dict__
        costs["execution_seconds"] = took
        costs["cpu_seconds"] = used if used > 0.0 else 0.0
        costs["peak_memory"] = peak
        fields["usage"] = usage
        if result is not None:
            fields["value"], fields["changes"] = result.value, result.changes
            fields["figures"] = result.figures
        self._cell.running_since = 0.0
        add = self._recovery.history.add
        add(self._cell.number)
        return outcome

    # ── any cell ──────────────────────────────────────────────────────────────────────────────

    def run(self) -> Generator[float, Ready_, AnyOutcome]:
        """Run the cell that was begun to its outcome."""
        state: State = "kept"
        cell, worker = self._cell, self._worker
        clocks = cell.follow_clocks()
        if not cell.begun:
            # The worker died between cells, so this one has not begun: give it a new worker.
            state = yield from self._completion.of(self._recovery.replace())
            self._send()
        expired: Clock | None = None
        wake = clocks.next_check(cell.running_since, worker.cpu_seconds())
        while (cell.result is None or worker.doomed) and not worker.dead:
            self._output.check()
            self._io.receive((yield wake))
            now = _monotonic()
            if now < wake and not clocks.paused:
                continue
            cpu = worker.cpu_seconds()
            expired = expired or clocks.expired(now, cpu)
            wake = clocks.next_check(now, cpu) if expired is None else self._overrun(now, wake)
        outcome = yield from self._completion.of(self.finish(expired, state))
        self._output.check()
        return outcome

    def _overrun(self, now: float, wake: float) -> float:
        """The cell's time is over: interrupt it, then end its worker. When to look again."""
        if self._grace_over is None:
            self._grace_over = now + self._grace
            self._init.interrupt()
            return self._grace_over
        if now < wake:
            return wake
        # A worker that was not run since may not have begun, and have made no copy yet.
        self._init.kill_worker(self._recovery.kept_first)
        return now + NOTICE_TIMEOUT

    def finish(self, expired: Clock | None, state: State) -> Generator[float, Ready_, AnyOutcome]:
        """The outcome of a cell that has its result, or whose worker is dead."""
        reason: KillReason | None = None
        cell, worker = self._cell, self._worker
        clocks = cell.follow_clocks()
        try:
            self._calls.refuse_open()
            if self._init.unacknowledged:
                yield from self._settle_interrupts()
            now, cpu = _monotonic(), worker.cpu_seconds()
            if worker.dead:
                yield from self._recovery.collect_death()
                reason = self._death_reason(expired)
                cpu = worker.cpu_seconds()
                forged = worker.breach is not None or reason == "protocol"
                whole = cell.result is not None and not forged
                state = yield from self._recovery.revive()
                if whole and self._was_copied(state):
                    reason, state = None, "kept"
                    self._recovery.history.add(cell.number)
            elif self._job is None:
                self._recovery.history.add(cell.number)
            else:
                self._recovery.history.assign()
            if not cell.quiet:
                self._output.drain()
        finally:
            cell.running_since = 0.0
            self._grace_over = None
        if self._job is None and worker.emptied:
            state, worker.emptied = "restarted", False
        output = self._output.end(cell.number if self._job is None else None)
        peak = 0 if cell.result is None else cell.result.peak_memory
        usage, answers = clocks.usage(now, cpu, peak), cell.answers.all()
        outcome = outcome_of(
            cell.result, output, answers, usage, state, expired=expired, died=reason
        )
        if worker.lost:
            outcome, worker.lost = replace(outcome, lost=worker.lost), ()
        self.end_job()
        return self.limit_hits.added_to(outcome)

    def _settle_interrupts(self) -> Generator[float, Ready_, None]:
        """No interrupt of this cell may strike the next: wait until init has sent them all."""
        deadline = _monotonic() + INIT_TIMEOUT
        while self._init.unacknowledged > 0 and not self._worker.dead:
            self._io.receive((yield deadline))
            if _monotonic() > deadline:
                self._init.kill_worker()
                self._worker.eof = True  # nothing more is taken from it

    def _was_copied(self, state: State) -> bool:
        """Whether the cell had ended, and a copy made of what it left, before its worker died."""
        copy = self._io.answer
        return (
            state == "rolled_back" and isinstance(copy, Restored) and copy.cell == self._cell.number
        )

    def _death_reason(self, expired: Clock | None) -> KillReason:
        worker = self._worker
        assert worker.notice is not None
        if worker.breach is not None:
            return worker.breach
        status = worker.notice["status"]
        if not os.WIFSIGNALED(status):
            return "exit"
        if os.WTERMSIG(status) == signal.SIGXCPU:
            return "cpu"
        if os.WTERMSIG(status) != signal.SIGKILL:
            return "signal"
        if expired is not None:  # and it was killed by init
            return "signal"
        if self.limit_hits.memory_was_hit():  # the kernel's own kill
            return "memory"
        return "protocol" if worker.silent else "signal"  # it had hung up, and lived on until then

    # ── internal jobs ─────────────────────────────────────────────────────────────────────────

    def begin_job(
        self, message: Callable[[int], HostMessage], descriptor: int, timeout: float
    ) -> float:
        """Start an internal job in place of a cell: `message`, given its number, with `descriptor`.

        It is held as a cell is, and `run` goes on with it; but it takes no number from the cells.
        Before the descriptor is closed, there has to be `SessionIO.withdraw`.
        """
        self._job, self._last_number = (message, descriptor), self._cell.number
        self._cell.number = _JOB - 1
        return self.begin(b"", timeout, None)

    def end_job(self) -> None:
        """What runs is a cell again."""
        if self._job is not None:
            self._job, self._cell.number = None, self._last_number
