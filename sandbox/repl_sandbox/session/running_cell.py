"""The running cell: its clocks, its answers, the history of cells, and limits that it met."""

from __future__ import annotations

import inspect
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeAlias

from ..host.links import SessionLinks
from ..protocol.messages import Answered, Result
from ..protocol.values import MAX_ANSWER_VALUES
from ..types import Answer, AnyOutcome, Clock, Finished, KillReason, Usage

# `CellAnswers`: the answers of one cell, in order and bounded; of `answer[...]` only the latest.

# One answer suffices; a loop of answers must not fill the host's memory.
_MAX_ANSWERS = 64
_MAX_CHARACTERS = 16 << 20
# Some 100 bytes each: the values of the four largest answers.
_MAX_VALUES = 4 * MAX_ANSWER_VALUES

# Accepts an answer, or raises ValueError to refuse it, immediately or when awaited.
Accept: TypeAlias = Callable[[Answer], Awaitable[None] | None]


class CellAnswers:
    """The answers of the running cell; `accepted` is empty when a cell begins."""

    def __init__(self) -> None:
        self.accepted: list[Answered] = []
        # by the number of the host call that brought the answer
        self._undecided: dict[int, Answered] = {}

    def all(self) -> tuple[Answer, ...]:
        """The answers that were kept."""
        return tuple(each.answer for each in self.accepted)

    def offer(self, answered: Answered, accept: Accept | None) -> Awaitable[None] | None:
        """Keep an answer if the limits allow it and `accept` accepts it.

        Returns an awaitable if the decision takes longer; `decided` receives its result.

        Raises:
            ValueError: the answer is refused; the message is for the cell.
        """
        self._check_room(answered)
        verdict = None if accept is None else accept(answered.answer)
        if inspect.isawaitable(verdict):
            self._undecided[answered.call] = answered
            return verdict
        self._keep(answered)
        return None

    def decided(self, call: int, accepted: bool) -> None:
        """Keep or drop the answer of host call number `call`, if that call brought an answer."""
        answered = self._undecided.pop(call, None)
        if answered is not None and accepted:
            self._keep(answered)

    def leave_undecided(self) -> None:
        """Drop the answers without a decision: the cell is over."""
        self._undecided.clear()

    def _check_room(self, new: Answered) -> None:
        answers = [*self.accepted, *self._undecided.values(), new]
        many = self._place(new) + len(self._undecided) >= _MAX_ANSWERS
        if many or sum(len(answer.answer.text) for answer in answers) > _MAX_CHARACTERS:
            raise ValueError(
                f"a cell may give {_MAX_ANSWERS} answers of {_MAX_CHARACTERS:,} characters"
            )
        if sum(answer.values for answer in answers) > _MAX_VALUES:
            raise ValueError(f"the answers of a cell may have {_MAX_VALUES:,} values together")

    def _keep(self, answered: Answered) -> None:
        place = self._place(answered)
        self.accepted[place:] = [answered, *self.accepted[place + 1 :]]

    def _place(self, answered: Answered) -> int:
        if answered.answer.form == "answer":
            for place, earlier in enumerate(self.accepted):
                if earlier.answer.form == "answer":
                    return place
        return len(self.accepted)


# `CellClocks`: how long a cell has executed, and how long it has waited for the host.
#
# Pure: times are arguments. The waiting time of a cell is the union of the intervals in which a
# function of the host ran for it, less the CPU time that its process used meanwhile: a thread
# that holds a call open cannot stop the clock for a thread that computes. The way of a call to
# its function and back is execution, so that calls without end do not stop the clock either.


class CellClocks:
    """Clocks that start when the cell is sent. Seconds: `now` is monotonic, `cpu` is the session's
    CPU time.
    """

    _waited = 0.0
    _running = 0
    _pause_started = 0.0
    _pause_cpu = 0.0

    def __init__(self, limit: float, host_limit: float, now: float, cpu: float) -> None:
        self._limit = limit
        self._host_limit = host_limit
        self._started = now
        self._cpu_started = cpu
        self._lock = threading.Lock()

    @property
    def paused(self) -> bool:
        """True if a function of the host runs."""
        return self._running > 0

    def function_begins(self, now: float, cpu: float) -> None:
        """Count a function that begins to run; called by its thread, as the next is."""
        with self._lock:
            if self._running == 0:
                self._pause_started, self._pause_cpu = now, cpu
            self._running += 1

    def function_ends(self, now: float, cpu: float) -> None:
        """Count a function that has returned, or raised."""
        with self._lock:
            self._running -= 1
            if self._running == 0:
                self._waited += self._pause(now, cpu)

    def _pause(self, now: float, cpu: float) -> float:
        return max(0.0, (now - self._pause_started) - (cpu - self._pause_cpu))

    def waiting(self, now: float, cpu: float) -> float:
        """Seconds spent waiting so far."""
        with self._lock:
            return self._waited + (self._pause(now, cpu) if self.paused else 0.0)

    def execution(self, now: float, cpu: float) -> float:
        """Seconds of execution so far."""
        return now - self._started - self.waiting(now, cpu)

    def usage(self, now: float, cpu: float, peak_memory: int) -> Usage:
        """The resources used so far."""
        waited = self.waiting(now, cpu) if self._waited or self._running else 0.0
        used = max(0.0, cpu - self._cpu_started)
        return Usage(now - self._started - waited, waited, used, peak_memory)

    def next_check(self, now: float, cpu: float) -> float:
        """The earliest time at which a clock can expire, whatever functions begin or end."""
        waited = self.waiting(now, cpu)
        executed = now - self._started - waited
        return now + min(self._limit - executed, self._host_limit - waited)

    def expired(self, now: float, cpu: float) -> Clock | None:
        """The clock that has expired, if any."""
        if self.execution(now, cpu) >= self._limit:
            return "execution"
        if self.waiting(now, cpu) >= self._host_limit:
            return "host_call"
        return None


# `CellHistory`: the latest cells that made a session's namespace.

# More than there are snapshots to return to (Sandbox(history=)); the memory is negligible.
REMEMBERED = 1000


class CellHistory:
    """The numbers of the cells whose effects are in the namespace, oldest first.

    `add` appends one. The numbers of the oldest of many cells are forgotten.
    """

    __slots__ = ("_assigned", "_cells", "_cut", "add")

    def __init__(self) -> None:
        self._cells: deque[int] = deque(maxlen=REMEMBERED)
        self._cut = False  # whether earlier cells count as well, and were forgotten
        self._assigned = False  # whether the host set a variable before the first cell
        self.add = self._cells.append  # an attribute, for speed: each cell calls it

    def __bool__(self) -> bool:
        """Return whether the namespace differs from an empty one."""
        return bool(self._cells) or self._assigned

    @property
    def last(self) -> int:
        """The number of the last cell, 0 before the first."""
        return self._cells[-1] if self._cells else 0

    @property
    def _is_cut(self) -> bool:
        return self._cut or len(self._cells) == REMEMBERED

    def assign(self) -> None:
        """Note that the host set a variable: there is a state before the first cell."""
        self._assigned = self._assigned or not self._cells

    def before(self, cells: int) -> int | None:
        """The cell after which the namespace was as before the last `cells` cells; 0: before the
        first cell.

        None if the namespace was empty then, -1 if the number is forgotten.

        Raises:
            ValueError: fewer cells have run.
        """
        if cells < len(self._cells):
            return self._cells[-cells - 1]
        if self._is_cut:
            return -1
        if cells > len(self._cells):
            raise ValueError(f"n={cells}, but {len(self._cells)} cells have run")
        return 0 if self._assigned else None

    def go_back(self, cell: int) -> tuple[int, int] | None:
        """Forget all cells after `cell`; return the first and the last number of those, if any."""
        cut, last, first = self._is_cut and cell > 0, self.last, 0
        while self._cells and self._cells[-1] > cell:
            first = self._cells.pop()
        self._cut = cut
        if cut and not self._cells:
            self._cells.append(cell)
            first = cell + 1
        return (first, last) if first else None

    def clear(self) -> None:
        """Note that the namespace is empty."""
        self._cells.clear()
        self._cut = self._assigned = False

    def of_branch(self) -> CellHistory:
        """A copy for a branch, which starts with the same namespace."""
        past = CellHistory()
        past._cells.extend(self._cells)
        past._cut, past._assigned = self._cut, True
        return past


# `RunningCell`: the cell that a session runs, or ran last, as all parts of the session see it.


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
            since, cpu = self.running_since, self.cpu_begun
            self.clocks = CellClocks(self.timeout, self._host_timeout, since, cpu)
            self.is_only_result = False
        return self.clocks

    def is_running(self, number: int) -> bool:
        """Return whether cell `number` has no result yet, so that it may call host functions."""
        return number == self.number and self.clocks is not None and self.result is None


# `LimitHits`: the limits that the kernel enforced on a session while a cell ran.

# Reading the kernel's counters takes microseconds. No process can be started, use up the memory and
# be killed in less than this; the counters are read after the next cell instead.
_CHECK_SECONDS = 0.002
# Nor in less than this, if the worker used no more CPU time than that: it did nothing else, and the
# host, which serves other sessions, read the result late.
_LATE = 0.02
_CHECK_CPU_SECONDS = 0.00025
# Added CPU time of a small session's snapshot, which a cell that follows immediately has among its
# own; with it, a cell that runs a program uses 0.75 ms and more.
_SNAPSHOT_CPU_SECONDS = 0.0005


class LimitHits:
    """The limits that the running cell hit. `full`: the session had as many processes as
    allowed.
    """

    def __init__(self, links: SessionLinks, cell: RunningCell, *, snapshots: bool) -> None:
        """`snapshots`: whether the worker makes a snapshot after each cell."""
        self._links, self._cell = links, cell
        self._cpu = _CHECK_CPU_SECONDS + (_SNAPSHOT_CPU_SECONDS if snapshots else 0.0)
        self._hit: tuple[KillReason, ...] = ()
        self.full = False

    def note_process_limit(self) -> None:
        """Note that the session has as many processes as allowed, so forks fail. Called from any
        thread.
        """
        self.full = bool(self._cell.running_since)

    def needs_check(self, seconds: float, cpu_seconds: float) -> bool:
        """Return whether a cell of this duration may have hit a limit that the kernel counts."""
        if seconds <= _CHECK_SECONDS:
            return False
        return seconds > _LATE or cpu_seconds > self._cpu

    def kill_for_memory(self) -> KillReason | None:
        """Return why the kernel killed a process of the session for memory; None if it did not."""
        group = self._links.group
        self._hit = () if group is None else group.hit()
        return next((reason for reason in self._hit if reason in ("memory", "machine")), None)

    def add_to(self, outcome: AnyOutcome) -> AnyOutcome:
        """Return `outcome` with the limits that were enforced since the last call."""
        group, usage = self._links.group, outcome.usage
        is_checked = group is not None and (
            type(outcome) is not Finished
            or self.needs_check(usage.execution_seconds, usage.cpu_seconds)
            or outcome.state != "kept"
        )
        if not is_checked and not self.full:
            return outcome
        counted = () if group is None else group.hit()
        # The kernel counts no fork that RLIMIT_NPROC refused.
        noted: tuple[KillReason, ...] = ("processes",) if self.full else ()
        hit = tuple(dict.fromkeys(self._hit + counted + noted))
        self._hit, self.full = (), False
        return replace(outcome, limits=hit) if hit else outcome
