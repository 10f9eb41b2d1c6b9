"""`Core`: the logic of one session, composed of its parts, for any driver.

An operation that has to wait is a generator: it yields the time at which it wants to continue if
nothing happens, and receives the descriptors that are ready. All reads and writes are non-blocking;
a driver does nothing but wait for `io.descriptors`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Mapping
from itertools import repeat
from typing import Protocol

from ..protocol.messages import Configure
from ..session_limits import Limits
from ..types import KillReason
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
    """A driver's resource that ends with the session."""

    def close(self) -> None:
        """Release the resource."""


class Core:
    """One session.

    Attributes:
        io, output: The data between the host and the session's processes.
        cells, questions, branches: The operations of the session.
        recovery, calls: Recovery after deaths; host functions.
        running: The cell that runs, or ran last.
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
        engine_processes: int,
    ) -> None:
        self.links, self.limits = links, limits
        self._rlimits, self._states = rlimits, states
        self.engine_processes = (
            engine_processes  # for the watchdog: processes besides those of the code
        )
        # For the watchdog: bytes of a memfd that the worker maps while it copies them.
        self.lent = 0
        # A preloaded module may have the state of a random generator, which all sessions share
        # until each is told to draw its own.
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
        self.busy = threading.Lock()  # held by the caller in progress
        # Takes the lock if it is free: the first iteration of a loop over this tells. Python checks
        # for signals after a call, and from CPython 3.14 on also within `with`, after `__enter__`:
        # a KeyboardInterrupt there would leave the lock taken for good. Python does not check
        # between the iterator's `next` and the body of a loop.
        self.takes = map(self.busy.acquire, repeat(False))
        self.holder = 0  # the thread of the last caller
        self.waiting: Closable | None = None  # the driver's resource for waiting, until the end
        self.owner: object = None  # a weak reference that warns of a handle that was never closed
        self.ended = False  # whether the session has ended, by itself or with its sandbox
        self._forgone = False

    def ready(self) -> None:
        """Follow the CPU clock of the worker, which has started; called once, before any
        operation.
        """
        self.io.worker.follow(self.links.cpu_clock())

    # ── for threads that watch sessions ───────────────────────────────────────────────────────

    @property
    def cell(self) -> int:
        """The number of the cell that runs, or ran last."""
        return self.running.number

    @property
    def running_since(self) -> float:
        """The start of the running cell on the monotonic clock; 0 while no cell runs."""
        return self.running.running_since

    @property
    def generation(self) -> int:
        """The number of the current worker; each worker has another."""
        return self.io.init.generation

    @property
    def interrupting(self) -> bool:
        """Whether the running cell was interrupted and has not ended yet."""
        return self.io.init.interrupting

    def breach(self, reason: KillReason, generation: int) -> None:
        """Kill the worker of this generation because it exceeded a limit."""
        self.io.init.breach(reason, generation)

    def is_full(self) -> None:
        """Note that the session has as many processes as allowed: forks fail."""
        self.cells.limit_hits.is_full()

    # ── branches ──────────────────────────────────────────────────────────────────────────────

    def check_offers(self, offers: FunctionRegistry | None) -> None:
        """Raise ValueError unless code of a branch can use these functions as it uses the
        session's.
        """
        own = self.calls.open_calls.offers
        if offers is not None and offers.differ(own):
            names = sorted(row.name for row in own.rows)
            raise ValueError(
                f"host must have the names of the session's functions, with their faces: {names}"
            )

    def branch_at(
        self, links: SessionLinks, offers: FunctionRegistry | None, on_answer: Accept | None
    ) -> Core:
        """Return the core of the branch at `links`, which has the state of this session.

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
            engine_processes=self.engine_processes,
        )
        core.running.number = self.running.number
        core.recovery.history = self.recovery.history.of_branch()
        core.io.configuration.restored()
        core.output.history = self.output.history.copy()
        return core

    # ── leaving in the middle ─────────────────────────────────────────────────────────────────

    def abandon(self) -> Generator[float, Ready_, None]:
        """End the cell or query whose caller left, and be ready for the next call."""
        cell, worker, init = self.running, self.io.worker, self.io.init
        self.output.begin(None)
        if self._completion.unfinished is not None:
            yield from self._completion.of_abandoned()
            cell.running_since = 0.0  # a cell that waited for it does not start any more
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
        """Whether the worker is busy with something that the next call would have to wait for."""
        unfinished = self._completion.unfinished is not None
        return bool(self.running.running_since) or self.questions.is_asking or unfinished

    def release(self) -> None:
        """Release `busy` for the next caller."""
        self.busy.release()
        self.left()

    def left(self) -> None:
        """Finish an end of the session that waited for the caller who held `busy`."""
        if self.ended:
            self.forsake()

    def withdraw_untouched(self) -> SessionLinks | None:
        """End the session for its host and return the links, if no code ran in it: another can have
        it.

        None if the session was used, or a call is in progress.
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
        """Release the host's resources of the session, which has ended, now or when its caller
        leaves.

        That caller may be the one that ends the session, in an `on_output` or a signal handler.
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
        """Release the host's resources; the sandbox ends the links."""
        self.io.listen(None)  # breaks a reference cycle
        self.calls.open_calls.close()
        self.output.forget()
        if self.waiting is not None:
            self.waiting.close()
