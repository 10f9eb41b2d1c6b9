"""A session's logic, written once for the sync and the async driver.

Each operation is a generator. It does what can be done without waiting, yields the time at which
it wants to be woken if nothing happens, and is resumed with the descriptors that are ready. All
reads and writes are non-blocking; a driver does nothing but wait.
"""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import replace
from itertools import repeat

from ..cgroups.group import Group
from ..types import (
    AnyOutcome,
    Clock,
    Finished,
    KillReason,
    Limits,
    State,
    Usage,
)
from ..wire.messages import (
    Configure,
    HostMessage,
    Restored,
    Result,
)
from ..wire.shortcut import MOST
from ..zygote.links import Links
from .answers import Accept
from .calls import Calls
from .clocks import Clocks
from .exchange import NOTICE_TIMEOUT, Ready_
from .host_functions import Executor
from .incoming import Incoming
from .offers import Offers
from .outcomes import outcome_of
from .waiting import Waiting

# The kernel's counts take microseconds to read. No process is made, filled and ended for its memory
# in less than this; what a shorter cell leaves is in the counts when the next is looked at.
_WORTH_A_LOOK = 0.002
# Seconds for which a reading of a worker's CPU clock is as good as a new one, where no copies are
# made between two cells, which take CPU time: each reading takes a step half a microsecond or more.
_AS_NEW = 0.001
# Seconds; a cell that took less, with a reading as good as new, has used no more than it took.
_NOT_WORTH_A_READING = 0.0001
# The number of work of ours that is held as a cell is. Cells count from 1, and are never so many.
_ERRAND = (1 << 53) - 1

_monotonic = time.monotonic
_new = object.__new__
_POLLIN = select.POLLIN


class Core(Incoming):
    """One session, and the cell that runs."""

    def __init__(
        self,
        links: Links,
        limits: Limits,
        rlimits: Mapping[str, int],
        *,
        offers: Offers,
        executor: Executor,
        seed: int | None,
        answers: str | None,
        on_answer: Accept | None,
        preloaded: bool,
        states: int,
        ours: int,
    ) -> None:
        super().__init__(
            links,
            limits,
            Configure(offers.rows, seed, answers),
            # A module of the template may hold random numbers' state, which is every session's
            # until the session is told to draw its own.
            plain=not (offers.rows or preloaded or answers is not None or seed is not None),
            rlimits=rlimits,
            states=states,
            calls=Calls(offers, executor),
            on_answer=on_answer,
        )
        self.ours = ours  # for the watchdog: processes besides those of the code
        # For the watchdog: bytes of a memfd that the worker maps while it copies them.
        self.lent = 0
        self.busy = threading.Lock()  # held by the one caller at a time
        # To take it, if nobody has it: of a loop over this the first turn says whether it is taken.
        # Python looks for signals after a call, and from CPython 3.14 on also within `with`, after
        # `__enter__`: a Ctrl-C there would leave the lock taken for good. Between what a loop asks
        # for its next item and the body of the loop it does not look.
        self.takes = map(self.busy.acquire, repeat(False))
        self.holder = 0  # the thread of the last one
        self.waiting: Waiting | None = None  # what a driver waits with, until the session has ended
        self.owner: object = None  # looks whether who has the session lets go of it before its end
        self.ended = False  # whether the session has, by itself or with its sandbox
        self._forgone = False
        self._hit: tuple[KillReason, ...] = ()
        self._grace_over: float | None = None
        self._code = b""
        self._timeout = self._cpu_begun = 0.0
        self._cpu_ended = self._ended_at = 0.0  # as read last, when a cell ended
        self._as_new = _AS_NEW if not self.keeps else 0.0
        self._begun = True  # whether the worker was there to take the cell
        self._errand: tuple[Callable[[int], HostMessage], int] | None = None
        self._last_cell = 0

    # ── a cell ────────────────────────────────────────────────────────────────────────────────

    def begin(
        self,
        code: bytes,
        timeout: float,
        on_output: Callable[[str, str], None] | None,
    ) -> float:
        """Start a cell; the time at which to stop waiting for `at_once`, and go on with `run`."""
        self.cell += 1
        self._begin_cell()
        if on_output is not None or self.output.told:
            self.output.begin(on_output)
        self._code = code
        self._timeout = timeout
        now = self.running_since = _monotonic()
        recent = now - self._ended_at < self._as_new
        self._cpu_begun = self._cpu_ended if recent else self.cpu_seconds()
        self._execute()
        return now + timeout

    def _follow_clocks(self) -> Clocks:
        """Start the cell's clocks, as of when it began: most cells end before anybody asks."""
        begun, cpu = self.running_since, self._cpu_begun
        self._clocks = Clocks(self._timeout, self.limits.host_timeout, begun, cpu)
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
        if self._silent_yet or not self._configured:
            self._say_first()
        if self._errand is None:
            frame = self.links.connection.execute(self.cell, self._code)
        else:
            message, descriptor = self._errand
            self._lending.offer(descriptor)
            frame = self.links.connection.send(message(self.cell))
        shortcut = self.links.shortcut
        if shortcut is None or len(frame) > MOST or self.outbox.interest != _POLLIN:
            self._begun = self._send_aside(frame)
        elif shortcut.send(frame):
            self._begun = True
        else:
            # A worker that has closed its end hears by the socket; one that does not read meets
            # the end of the pipe, and ends.
            self._drop_shortcut()
            self._begun = self._send_aside(frame)
        if not self._begun:
            self._eof = True

    def at_once(self, ready: Ready_) -> AnyOutcome | None:
        """Take in what came first; the outcome, if that was the cell's result and nothing else.

        So it is with most steps, and what costs time here is paid by each.
        """
        if len(ready) != 1 or ready[0][0] != self._first or self.outbox.interest != _POLLIN:
            self._follow_clocks()
            self._receive(ready)
            return None
        data = self._read_first()
        peak = self.links.connection.empty_result(data, self.cell)
        now = _monotonic()
        if peak is not None and self._ended_plainly(now):
            return self._finished(None, peak, now)
        self._follow_clocks()
        if peak is not None:
            self._result = Result(self.cell, None, None, (), (), peak)
            return None
        self._quiet = self._take_first(data) and self.worker_first
        result = self._result
        if self._quiet and result is not None and result.error is None and self._ended_plainly(now):
            return self._finished(result, result.peak_memory, now)
        return None

    def _ended_plainly(self, now: float) -> bool:
        """Whether nothing is to be looked at besides the result that has come."""
        return (
            self.worker_first
            and now - self.running_since < _WORTH_A_LOOK
            and not (
                self._unacknowledged
                or self._notice
                or self._errand
                or self._eof
                or self._lost
                or self._emptied
            )
            and not (self.output.stdout.head_size or self.output.stderr.head_size)
        )

    def _finished(self, result: Result | None, peak: int, now: float) -> Finished:
        """The outcome of a cell that ended plainly; without a `result`, of one that told nothing.

        All that is not set is as in the classes. They are frozen, and so set each field by a call,
        which takes longer than the rest of a step's end.
        """
        usage, outcome = _new(Usage), _new(Finished)
        costs, fields = usage.__dict__, outcome.__dict__
        costs["execution_seconds"] = took = now - self.running_since
        if took < _NOT_WORTH_A_READING and now - self._ended_at < self._as_new:
            used = took
            self._cpu_ended += took  # or the next reading would charge for it again
        else:
            self._ended_at, self._cpu_ended = now, self.cpu_seconds()
            used = self._cpu_ended - self._cpu_begun
        costs["cpu_seconds"] = used if used > 0.0 else 0.0
        costs["peak_memory"] = peak
        fields["usage"] = usage
        if result is not None:
            fields["value"], fields["changes"] = result.value, result.changes
            fields["figures"] = result.figures
        self.running_since = 0.0
        self._past.add(self.cell)
        return outcome

    def run(self) -> Generator[float, Ready_, AnyOutcome]:
        """Run the cell that was begun to its outcome."""
        state: State = "kept"
        clocks = self._clocks or self._follow_clocks()
        if not self._begun:
            # The worker died between cells, so this one has not begun: give it a new worker.
            state = yield from self._whole(self._replace())
            self._execute()
        expired: Clock | None = None
        wake = clocks.next_check(self.running_since, self.cpu_seconds())
        while (self._result is None or self._doomed) and not self._eof and self._notice is None:
            self.output.check()
            self._receive((yield wake))
            now = _monotonic()
            if now < wake and not clocks.paused:
                continue
            cpu = self.cpu_seconds()
            expired = expired or clocks.expired(now, cpu)
            if expired is None:
                wake = clocks.next_check(now, cpu)
            elif self._grace_over is None:
                self._grace_over = wake = now + self.limits.grace
                self.interrupt()
            elif now >= wake:
                # A worker that was not run since may not have begun, and have made no copy yet.
                self._kill_worker(self._kept_first)
                wake = now + NOTICE_TIMEOUT
        outcome = yield from self._whole(self._finish(expired, state))
        self.output.check()
        return outcome

    def _finish(self, expired: Clock | None, state: State) -> Generator[float, Ready_, AnyOutcome]:
        reason: KillReason | None = None
        clocks = self._clocks or self._follow_clocks()
        try:
            if self._calls.running:
                self._refuse_open_calls()
            if self._unacknowledged:
                yield from self._settle_interrupts()
            now, cpu = _monotonic(), self.cpu_seconds()
            if self._eof or self._notice is not None:
                yield from self._collect_death()
                reason = self._death_reason(expired)
                cpu = self.cpu_seconds()
                forged = self._breach is not None or reason == "protocol"
                whole = self._result is not None and not forged
                state = yield from self._revive()
                if whole and self._was_copied(state):
                    reason, state = None, "kept"
                    self._past.add(self.cell)
            elif self._errand is None:
                self._past.add(self.cell)
            else:
                self.assigned()
            if not self._quiet:
                self.output.drain()
        finally:
            self.running_since = 0.0
            self._grace_over = None
        if self._errand is None and self._emptied:
            state, self._emptied = "restarted", False
        output = self.output.end(self.cell if self._errand is None else None)
        result, answers = self._result, self._answers.all()
        usage = clocks.usage(now, cpu, 0 if result is None else result.peak_memory)
        outcome = outcome_of(result, output, answers, usage, state, expired=expired, died=reason)
        if self._lost:
            outcome, self._lost = replace(outcome, lost=self._lost), ()
        self._end_errand()
        group = self.links.group
        if group is not None and (
            type(outcome) is not Finished
            or outcome.usage.execution_seconds > _WORTH_A_LOOK
            or state != "kept"
        ):
            return self._with_limits(outcome, group)
        return outcome

    def _was_copied(self, state: State) -> bool:
        """Whether the cell had ended, and a copy made of what it left, before its worker died."""
        copy = self._asked
        return state == "rolled_back" and isinstance(copy, Restored) and copy.cell == self.cell

    def _with_limits(self, outcome: AnyOutcome, group: Group) -> AnyOutcome:
        """`outcome` with the limits that the kernel has enforced meanwhile, if any."""
        counted = group.hit()
        hit = self._hit + tuple(name for name in counted if name not in self._hit)
        self._hit = ()
        return replace(outcome, limits=hit) if hit else outcome

    # ── the end of a cell, or of a worker ─────────────────────────────────────────────────────

    def _death_reason(self, expired: Clock | None) -> KillReason:
        assert self._notice is not None
        if self._breach is not None:
            return self._breach
        status = self._notice["status"]
        if not os.WIFSIGNALED(status):
            return "exit"
        if os.WTERMSIG(status) == signal.SIGXCPU:
            return "cpu"
        if os.WTERMSIG(status) != signal.SIGKILL:
            return "signal"
        if expired is not None:  # and it was killed by init
            return "signal"
        group = self.links.group
        self._hit = () if group is None else group.hit()
        if "memory" in self._hit:  # the kernel's own kill
            return "memory"
        return "protocol" if self._silent else "signal"  # it had hung up, and lived on until then

    # ── branches ──────────────────────────────────────────────────────────────────────────────

    def check_offers(self, offers: Offers | None) -> None:
        """ValueError if the code of a branch would miss one of these, or know nothing of it."""
        if offers is not None and offers.differ(self._calls.offers):
            names = sorted(row.name for row in self._calls.offers.rows)
            raise ValueError(
                f"host must have the names of the session's functions, with their faces: {names}"
            )

    def line(
        self,
        links: Links,
        offers: Offers | None,
        on_answer: Accept | None,
    ) -> Core:
        """The logic of the branch at `links`, which has all that this session has.

        `offers` and `on_answer` may be its own; the names of functions stay.
        """
        core = Core(
            links,
            self.limits,
            self._rlimits,
            offers=self._calls.offers if offers is None else offers,
            executor=self._calls.executor,
            seed=None,
            answers=self._configure.answers,
            on_answer=self._on_answer if on_answer is None else on_answer,
            preloaded=True,
            states=self._states,
            ours=self.ours,
        )
        core.cell, core._past = self.cell, self._past.of_branch()
        core._configured, core._silent_yet = True, False
        core.output.history = self.output.history.copy()
        return core

    # ── leaving in the middle ─────────────────────────────────────────────────────────────────

    def abandon(self) -> Generator[float, Ready_, None]:
        """The caller left amid a cell or a question: end that, and be ready for the next."""
        self.output.begin(None)
        if self._unfinished is not None:
            yield from self._whole(self._unfinished, begun=True)
            self.running_since = 0.0  # a cell that waited for it is not begun any more
            self._end_errand()
            return
        if self._is_asking:
            yield from self._outwait()
        if self.running_since and self._result is None and not self._dead:
            self.interrupt()
            deadline = _monotonic() + self.limits.grace
            while (self._result is None or self._doomed) and not self._dead:
                self._receive((yield deadline))
                if _monotonic() >= deadline:
                    self._kill_worker(self._kept_first)
                    deadline += NOTICE_TIMEOUT
        if self.running_since:
            yield from self._whole(self._finish(None, "kept"))

    @property
    def engaged(self) -> bool:
        """Whether the worker is at something that the next call would have to wait for."""
        return bool(self.running_since) or self._is_asking or self._unfinished is not None

    def release(self) -> None:
        """The caller who held `busy` leaves."""
        self.busy.release()
        self.left()

    def left(self) -> None:
        """The caller who held `busy` has left."""
        if self.ended:
            self.forsake()

    def forsake(self) -> None:
        """The session has ended: drop what belongs to the host, now or as its caller leaves.

        That may be who ends it, in an `on_output` or a handler of signals.
        """
        self.ended = True
        self.owner = None
        if not self.busy.acquire(False):
            return
        try:
            if not self._forgone:
                self._forgone = True
                self.links.close()
                self.close()
        finally:
            self.busy.release()

    def close(self) -> None:
        """Drop what belongs to the host; the links are the sandbox's to end."""
        self._calls.close()
        self.output.forget()
        if self.waiting is not None:
            self.waiting.close()
