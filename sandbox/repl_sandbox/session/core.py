"""A session's logic, written once for the sync and the async driver.

Each operation is a generator. It does what can be done without waiting, yields the time at which
it wants to be woken if nothing happens, and is resumed with the descriptors that are ready. All
reads and writes are non-blocking; a driver does nothing but wait.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Generator, Mapping
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
)
from ..wire.messages import Configure, Restored
from ..zygote.links import Links
from .answers import Accept
from .calls import Calls
from .exchange import NOTICE_TIMEOUT, Ready_
from .host_functions import Executor
from .offers import Offers
from .outcomes import outcome_of
from .steps import Steps
from .waiting import Waiting

_monotonic = time.monotonic


class Core(Steps):
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
        self._full = False  # whether all processes were there that may be, while the cell ran
        self._grace_over: float | None = None

    # ── a cell ────────────────────────────────────────────────────────────────────────────────

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
        if self._full or (
            self.links.group is not None
            and (
                type(outcome) is not Finished
                or self._is_worth_a_look(outcome.usage.execution_seconds, now)
                or state != "kept"
            )
        ):
            return self._with_limits(outcome, self.links.group)
        return outcome

    def is_full(self) -> None:
        """All processes are there that may be: forks are refused. From any thread."""
        self._full = bool(self.running_since)

    def _was_copied(self, state: State) -> bool:
        """Whether the cell had ended, and a copy made of what it left, before its worker died."""
        copy = self._asked
        return state == "rolled_back" and isinstance(copy, Restored) and copy.cell == self.cell

    def _with_limits(self, outcome: AnyOutcome, group: Group | None) -> AnyOutcome:
        """`outcome` with the limits that the kernel has enforced meanwhile, if any."""
        counted = () if group is None else group.hit()
        # RLIMIT_NPROC tells nobody that it has refused a fork.
        seen: tuple[KillReason, ...] = ("processes",) if self._full else ()
        hit = tuple(dict.fromkeys(self._hit + counted + seen))
        self._hit, self._full = (), False
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

    def withdraw_untouched(self) -> Links | None:
        """End the session for its host, if it is as it was made: what it may be another's by.

        None where it is not, or a call is under way.
        """
        if not self.busy.acquire(False):
            return None
        try:
            if self._forgone or not self.untouched:
                return None
            self.ended = self.closing = self._forgone = True
            self.owner = None
            self.close()
        finally:
            self.busy.release()
        return self.links

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
