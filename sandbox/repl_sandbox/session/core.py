"""`Core`: one session's logic, composed of its parts, for any driver.

Each operation that has to wait is a generator: it yields the time at which it wants to be woken if
nothing happens, and is resumed with the descriptors that are ready. All reads and writes are
non-blocking; a driver does nothing but wait for `io.descriptors`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Mapping
from itertools import repeat
from typing import Protocol

from ..protocol.messages import Configure
from ..types import KillReason, Limits
from ..zygote.client.session_links import SessionLinks
from .branches import Branches
from .cells.cell_answers import Accept
from .cells.cell_execution import CellExecution
from .cells.running_cell import RunningCell
from .host_functions.function_executor import FunctionExecutor
from .host_functions.function_registry import FunctionRegistry
from .host_functions.host_call_handler import HostCallHandler
from .host_functions.open_calls import OpenCalls
from .io import Ready_, SessionIO
from .message_dispatch import MessageDispatch
from .namespace_queries import NamespaceQueries
from .output import OutputCapture
from .recovery import NOTICE_TIMEOUT, Recovery
from .shielded_operations import ShieldedOperations
from .transport.worker_configuration import WorkerConfiguration

_monotonic = time.monotonic


class Closable(Protocol):
    """Something of a driver's that ends with the session."""

    def close(self) -> None:
        """Let go of what it holds."""


class Core:
    """One session.

    Attributes:
        io, output: what passes between the host and the session's processes.
        cells, questions, branches: what can be asked of the session.
        recovery, calls: how it goes on after a death; what its code asks of the host.
        running: the cell that runs, or ran last.
    """

    def __init__(
        self,
        links: SessionLinks,
        limits: Limits,
        rlimits: Mapping[str, int],
        *,
        offers: FunctionRegistry,
        executor: FunctionExecutor,
        seed: int | None,
        answers: str | None,
        on_answer: Accept | None,
        preloaded: bool,
        states: int,
        ours: int,
    ) -> None:
        self.links, self.limits = links, limits
        self._rlimits, self._states = rlimits, states
        self.ours = ours  # for the watchdog: processes besides those of the code
        # For the watchdog: bytes of a memfd that the worker maps while it copies them.
        self.lent = 0
        # A module of the template may hold random numbers' state, which is every session's until
        # the session is told to draw its own.
        plain = not (offers.rows or preloaded or answers is not None or seed is not None)
        configuration = WorkerConfiguration(Configure(offers.rows, seed, answers), plain=plain)
        open_calls, completion = OpenCalls(offers, executor), ShieldedOperations()
        cell = self.running = RunningCell(limits.host_timeout)
        io = self.io = SessionIO(links, cell, configuration, open_calls.wakes)
        self.output = OutputCapture(links.stdout, links.stderr, int(limits.output))
        self.calls = HostCallHandler(io, cell, open_calls, self.output, on_answer)
        io.listen(MessageDispatch(io, cell, self.calls, self.output))
        self.recovery = Recovery(io, cell, completion, rlimits, states)
        self.questions = NamespaceQueries(io, cell, self.recovery, completion, limits)
        self.branches = Branches(io, self.questions, self.recovery, completion)
        self.cells = CellExecution(
            io, cell, self.calls, self.output, self.recovery, completion, limits
        )
        self._completion = completion
        self.busy = threading.Lock()  # held by the one caller at a time
        # To take it, if nobody has it: of a loop over this the first turn says whether it is taken.
        # Python looks for signals after a call, and from CPython 3.14 on also within `with`, after
        # `__enter__`: a Ctrl-C there would leave the lock taken for good. Between what a loop asks
        # for its next item and the body of the loop it does not look.
        self.takes = map(self.busy.acquire, repeat(False))
        self.holder = 0  # the thread of the last one
        self.waiting: Closable | None = None  # what a driver waits with, until the end
        self.owner: object = None  # looks whether who has the session lets go of it before its end
        self.ended = False  # whether the session has, by itself or with its sandbox
        self._forgone = False

    def ready(self) -> None:
        """The worker is there; called once, before anything else is asked."""
        self.io.worker.follow(self.links.cpu_clock())

    # ── for threads that watch sessions ───────────────────────────────────────────────────────

    @property
    def cell(self) -> int:
        """The number of the cell that runs, or ran last."""
        return self.running.number

    @property
    def running_since(self) -> float:
        """When the cell began that runs, on the monotonic clock; 0 while none runs."""
        return self.running.running_since

    @property
    def generation(self) -> int:
        """Another number for each worker."""
        return self.io.init.generation

    @property
    def interrupting(self) -> bool:
        """Whether the running cell was interrupted, and has not ended yet."""
        return self.io.init.interrupting

    def breach(self, reason: KillReason, generation: int) -> None:
        """End the worker of this generation because a limit is passed."""
        self.io.init.breach(reason, generation)

    def is_full(self) -> None:
        """All processes are there that may be: forks are refused."""
        self.cells.limit_hits.is_full()

    # ── branches ──────────────────────────────────────────────────────────────────────────────

    def check_offers(self, offers: FunctionRegistry | None) -> None:
        """ValueError if the code of a branch would miss one of these, or know nothing of it."""
        own = self.calls.open_calls.offers
        if offers is not None and offers.differ(own):
            names = sorted(row.name for row in own.rows)
            raise ValueError(
                f"host must have the names of the session's functions, with their faces: {names}"
            )

    def branch_at(
        self, links: SessionLinks, offers: FunctionRegistry | None, on_answer: Accept | None
    ) -> Core:
        """The logic of the branch at `links`, which has all that this session has.

        `offers` and `on_answer` may be its own; the names of functions stay.
        """
        core = Core(
            links,
            self.limits,
            self._rlimits,
            offers=self.calls.open_calls.offers if offers is None else offers,
            executor=self.calls.open_calls.executor,
            seed=None,
            answers=self.io.configuration.message.answers,
            on_answer=self.calls.on_answer if on_answer is None else on_answer,
            preloaded=True,
            states=self._states,
            ours=self.ours,
        )
        core.running.number = self.running.number
        core.recovery.history = self.recovery.history.of_branch()
        core.io.configuration.restored()
        core.output.history = self.output.history.copy()
        return core

    # ── leaving in the middle ─────────────────────────────────────────────────────────────────

    def abandon(self) -> Generator[float, Ready_, None]:
        """The caller left amid a cell or a question: end that, and be ready for the next."""
        cell, worker, init = self.running, self.io.worker, self.io.init
        self.output.begin(None)
        if self._completion.unfinished is not None:
            yield from self._completion.of_abandoned()
            cell.running_since = 0.0  # a cell that waited for it is not begun any more
            self.cells.end_job()
            return
        if self.questions.is_asking:
            yield from self.questions.outwait()
        if cell.running_since and cell.result is None and not worker.dead:
            init.interrupt()
            deadline = _monotonic() + self.limits.grace
            while (cell.result is None or worker.doomed) and not worker.dead:
                self.io.receive((yield deadline))
                if _monotonic() >= deadline:
                    init.kill_worker(self.recovery.kept_first)
                    deadline += NOTICE_TIMEOUT
        if cell.running_since:
            yield from self._completion.of(self.cells.finish(None, "kept"))

    @property
    def engaged(self) -> bool:
        """Whether the worker is at something that the next call would have to wait for."""
        unfinished = self._completion.unfinished is not None
        return bool(self.running.running_since) or self.questions.is_asking or unfinished

    def release(self) -> None:
        """The caller who held `busy` leaves."""
        self.busy.release()
        self.left()

    def left(self) -> None:
        """The caller who held `busy` has left."""
        if self.ended:
            self.forsake()

    def withdraw_untouched(self) -> SessionLinks | None:
        """End the session for its host, if it is as it was made: what it may be another's by.

        None where it is not, or a call is under way.
        """
        if not self.busy.acquire(False):
            return None
        try:
            if self._forgone or not self.io.untouched:
                return None
            self.ended = self.io.closing = self._forgone = True
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
        self.io.listen(None)  # the two refer to each other, and would wait for the collector
        self.calls.open_calls.close()
        self.output.forget()
        if self.waiting is not None:
            self.waiting.close()
