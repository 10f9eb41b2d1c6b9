"""A session's logic, written once for the sync and the async driver.

Each operation is a generator. It does what can be done without waiting, yields the time at which
it wants to be woken if nothing happens, and is resumed with the descriptors that are ready. All
reads and writes are non-blocking; a driver does nothing but wait.
"""

from __future__ import annotations

import functools
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import replace
from typing import TypeAlias

from ..cgroups.group import Group
from ..errors import RemoteProtocolError, SandboxError, SessionClosed
from ..types import (
    Answer,
    AnyOutcome,
    Clock,
    Finished,
    Killed,
    KillReason,
    Limits,
    Raised,
    State,
    TimedOut,
)
from ..wire.connection import HostConnection
from ..wire.messages import (
    Answered,
    Call,
    Configure,
    Fetch,
    HostMessage,
    Reply,
    Restored,
    Result,
    WorkerMessage,
)
from ..wire.state import Phase
from ..worker.copies import ASK_FOR_COPY
from ..zygote import control
from ..zygote.handle import Links, read_ready
from .answers import AnswersOfCell
from .clocks import Clocks, process_cpu
from .ends import Ends
from .host_functions import (
    MAX_OPEN_BYTES,
    MAX_OPEN_CALLS,
    Executor,
    Replies,
    Running,
    arguments,
    refusal,
    size,
)
from .offers import Offers
from .outbox import Outbox
from .output import MOST_PIPED, PAGE, History, Stream
from .paging import PAGING

Ready_: TypeAlias = "list[tuple[int, int]]"

_READ = 1 << 16
# A worker dies within microseconds of its socket; init's notice follows. Longer means that code of
# the session closed the socket and lives on.
_NOTICE_TIMEOUT = 1.0
# One chunk from a worker can ask for hundreds of pages; so many threads may read at once.
_MOST_PAGED = 16 * PAGE
# The kernel's counts take microseconds to read. No process is made, filled and ended for its memory
# in less than this; what a shorter cell leaves is in the counts when the next is looked at.
_WORTH_A_LOOK = 0.002
# A fork in init takes milliseconds.
_RESTART_TIMEOUT = 10.0
# Init ends what runs and a copy opens its files: milliseconds, but for the memory of a large
# session, which the kernel has to free.
_REVIVE_TIMEOUT = 10.0
# What is woken then looks for what it lacks among its objects, of which there may be millions.
_RESTORE_TIMEOUT = 5.0

_STATES: Mapping[State, str] = {
    "rolled_back": "has again what it had after its last cell",
    "restarted": "is empty now",
}
# The number of work of ours that is held as a cell is. Cells count from 1, and are never so many.
_ERRAND = (1 << 53) - 1

_monotonic = time.monotonic
_clock_gettime = time.clock_gettime
_new = object.__new__
_POLLIN = select.POLLIN


class Core:
    """One session: its links, its counters, and the cell that runs."""

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
        on_answer: Callable[[Answer], None] | None,
        preloaded: bool,
        states: int,
        ours: int,
    ) -> None:
        self.ours = ours  # for the watchdog: processes besides those of the code
        self.links = links
        self.limits = limits
        self.running_since = 0.0  # for the watchdog; 0 while nothing runs
        # For the watchdog: bytes of a memfd that the worker maps while it copies them.
        self.lent = 0
        self.generation = 0  # for the watchdog: another whenever the worker is
        # Whether init was told to end the worker, and there is no other yet.
        self._replacing = False
        self.busy = threading.Lock()  # held by the one caller at a time
        self.cell = 0
        self._rlimits = dict(rlimits)
        self._offers = offers
        self._executor = executor
        self._configure = Configure(offers.rows, seed, answers)
        self._on_answer = on_answer
        # A module of the template may hold random numbers' state, which is every session's until
        # the session is told to draw its own.
        self._plain = not (offers.rows or preloaded or answers is not None or seed is not None)
        self._configured = self._plain
        self.outbox = Outbox(links.worker)
        self._stdout = Stream(links.stdout, int(limits.output))
        self._stderr = Stream(links.stderr, int(limits.output))
        self._pipes = select.poll()
        self._pipes.register(links.stdout, select.POLLIN)
        self._pipes.register(links.stderr, select.POLLIN)
        self.history = History(int(limits.output))
        self._replies = Replies() if offers.rows else None
        self._worker_fd = links.worker.fileno()
        self._control_fd = links.control.fileno()
        self._cpu_clock = 0
        self._cpu_of_dead = 0.0
        self._interrupt_lock = threading.Lock()
        self._unacknowledged = 0
        self._notice: control.Message | None = None
        self._breach: KillReason | None = None
        self._hit: tuple[KillReason, ...] = ()
        self._eof = False
        # Set by a driver that looks at the worker's socket before it looks at the pipes.
        self.worker_first = False
        self._quiet = False
        self._grace_over: float | None = None
        self._code = b""
        self._begun = True  # whether the worker was there to take the cell
        self._errand: tuple[Callable[[int], HostMessage], int] | None = None
        self._last_cell = 0
        self._asked: WorkerMessage | None = None
        self._states = states  # kept besides the current one; -1: no copies of the worker wait
        self.keeps = states >= 0
        self._ran: list[int] = []  # the cells that made the namespace what it is
        self._assigned = False  # whether the host has set a variable before the first of them
        self._lost: tuple[str, ...] = ()
        self._born = 1  # the generation of the worker, as init counts
        self._revived: control.Message | None = None
        self._branched: bool | None = None
        self._branches = 0  # that were asked for
        self._open: dict[int, Running] = {}  # the cell's calls that are not answered
        self._answers = AnswersOfCell()
        self._name_descriptors()
        self._begin_cell()

    def _begin_cell(self) -> None:
        self._quiet = False
        self._result: Result | None = None
        self._clocks: Clocks | None = None
        if self._answers.kept:
            self._answers = AnswersOfCell()

    @property
    def last_kept(self) -> int:
        """The number of the last cell that made the namespace what it is; 0 before the first."""
        return self._ran[-1] if self._ran else 0

    def ready(self) -> None:
        """The worker is there; called once, before anything else is asked."""
        self._cpu_clock = process_cpu(self.links.worker_pid)

    # ── what drivers need ─────────────────────────────────────────────────────────────────────

    def _name_descriptors(self) -> None:
        """What a driver waits for: to read each, but the outbox says what of the first."""
        fds: tuple[int, ...] = (
            self._worker_fd,
            self._control_fd,
            self.links.stdout,
            self.links.stderr,
        )
        self.descriptors = fds if self._replies is None else (*fds, self._replies.wake_fd)

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
        if on_output is not None:
            self._stdout.begin(functools.partial(on_output, "stdout"))
            self._stderr.begin(functools.partial(on_output, "stderr"))
        self._code = code
        now = self.running_since = _monotonic()
        self._clocks = Clocks(timeout, self.limits.host_timeout, now, self.cpu_seconds())
        self._execute()
        return now + timeout

    def begin_errand(
        self, message: Callable[[int], HostMessage], descriptor: int, timeout: float
    ) -> float:
        """Start work of ours in place of a cell: `message`, given its number, with `descriptor`.

        It is held as a cell is, and `run` goes on with it; but it takes no number from the cells.
        """
        self._errand, self._last_cell, self.cell = (message, descriptor), self.cell, _ERRAND - 1
        return self.begin(b"", timeout, None)

    def _execute(self) -> None:
        if not self._configured:
            self._configured = True
            self._send(self._configure)
        if self._errand is None:
            frame, descriptor = self.links.connection.execute(self.cell, self._code), None
        else:
            message, descriptor = self._errand
            frame = self.links.connection.send(message(self.cell))
        self._begun = self.outbox.send(frame, descriptor)
        if not self._begun:
            self._eof = True

    def at_once(self, ready: Ready_) -> AnyOutcome | None:
        """Take in what came first; the outcome, if that was an empty result and nothing else.

        So it is with most steps, and what costs time here is paid by each.
        """
        if len(ready) != 1 or ready[0][0] != self._worker_fd or self.outbox.interest != _POLLIN:
            self._receive(ready)
            return None
        data = self._read_worker()
        peak = self.links.connection.empty_result(data, self.cell)
        if peak is None:
            self._quiet = self._take_all(data) and self.worker_first
            return None
        clocks, now = self._clocks, _monotonic()
        if (
            self.worker_first
            and clocks is not None
            and now - self.running_since < _WORTH_A_LOOK
            and not (self._open or self._unacknowledged or self._answers.kept or self._notice)
            and not (self._stdout.head_size or self._stderr.head_size)
        ):
            # All else is as in the class; setting nine fields takes longer than all of the above.
            outcome = _new(Finished)
            outcome.__dict__["usage"] = clocks.usage(now, self.cpu_seconds(), peak)
            self.running_since = 0.0
            self._ran.append(self.cell)
            return outcome
        self._result = Result(self.cell, None, None, (), (), peak)
        return None

    def run(self) -> Generator[float, Ready_, AnyOutcome]:
        """Run the cell that was begun to its outcome."""
        state: State = "kept"
        clocks = self._clocks
        assert clocks is not None
        if not self._begun:
            # The worker died between cells, so this one has not begun: give it a new worker.
            yield from self._collect_death()
            state = yield from self._revive()
            self._execute()
        expired: Clock | None = None
        wake = clocks.next_check(self.running_since, self.cpu_seconds())
        while self._result is None and not self._eof and self._notice is None:
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
                self._kill_worker()
                wake = now + _NOTICE_TIMEOUT
        return (yield from self._finish(expired, state))

    def _finish(self, expired: Clock | None, state: State) -> Generator[float, Ready_, AnyOutcome]:
        reason: KillReason | None = None
        try:
            if self._open:
                self._refuse_open_calls()
            if self._unacknowledged:
                yield from self._settle_interrupts()
            now, cpu = _monotonic(), self.cpu_seconds()
            if self._eof or self._notice is not None:
                yield from self._collect_death()
                reason = self._death_reason(expired)
                cpu = self.cpu_seconds()
                state = yield from self._revive()
            elif self._errand is None:
                self._ran.append(self.cell)
            else:
                self.assigned()
            self._drain()
        finally:
            self.running_since = 0.0
            self._grace_over = None
        outcome = self._outcome(expired, reason, state, now, cpu)
        if self._lost:
            outcome, self._lost = replace(outcome, lost=self._lost), ()
        if self._errand is not None:
            self._errand, self.cell = None, self._last_cell
        group = self.links.group
        if group is not None and (
            type(outcome) is not Finished
            or outcome.usage.execution_seconds > _WORTH_A_LOOK
            or state != "kept"
        ):
            return self._with_limits(outcome, group)
        return outcome

    def _with_limits(self, outcome: AnyOutcome, group: Group) -> AnyOutcome:
        """`outcome` with the limits that the kernel has enforced meanwhile, if any."""
        counted = group.hit()
        hit = self._hit + tuple(name for name in counted if name not in self._hit)
        self._hit = ()
        return replace(outcome, limits=hit) if hit else outcome

    def _drain(self) -> None:
        """Take what the cell has written; not for ever, for what it left behind may go on."""
        taken = 0
        while not self._quiet and taken < MOST_PIPED and self._pipes.poll(0):
            read = self._stdout.read() + self._stderr.read()
            if not read:  # end of file: init, which held the other ends, is gone
                return
            taken += read

    def _outcome(
        self,
        expired: Clock | None,
        reason: KillReason | None,
        state: State,
        now: float,
        cpu: float,
    ) -> AnyOutcome:
        assert self._clocks is not None
        stdout, stderr = self._stdout.end(), self._stderr.end()
        if (stdout or stderr) and self._errand is None:
            self.history.add(self.cell, stdout, stderr)
        result, clocks = self._result, self._clocks
        usage = clocks.usage(now, cpu, 0 if result is None else result.peak_memory)
        answers = self._answers.all()
        if result is None or reason is not None:
            # The kill that ends a cell past its time reads as a signal; a limit that was passed
            # meanwhile has the better claim.
            if expired is not None and reason not in ("memory", "cpu", "protocol"):
                return TimedOut(
                    stdout, stderr, answers=answers, usage=usage, state=state, clock=expired
                )
            killed = reason or "protocol"
            return Killed(stdout, stderr, answers=answers, usage=usage, state=state, reason=killed)
        shown = (
            stdout,
            stderr,
            result.value,
            result.error,
            result.changes,
            result.figures,
            answers,
            usage,
        )
        if expired is not None:
            return TimedOut(*shown, state, expired)
        if result.error is not None:
            return Raised(*shown, state)
        return Finished(*shown, state)

    # ── what comes in ─────────────────────────────────────────────────────────────────────────

    @property
    def _dead(self) -> bool:
        return self._eof or self._notice is not None

    def _receive(self, ready: Ready_) -> None:
        if len(ready) == 1 and ready[0][0] == self._worker_fd and not self.outbox:
            # What the cell wrote before its result was in the pipes before this was in the socket.
            # If that was seen first, and nothing in the pipes after it, then nothing is there.
            self._quiet = self._take_all(self._read_worker()) and self.worker_first
            return
        for fd, _ in ready:
            if fd == self._worker_fd:
                if self.outbox and not self.outbox.flush():
                    self._eof = True
                if self.outbox.interest & select.POLLIN:
                    self._take_all(self._read_worker())
            elif fd == self._stdout.fd:
                self._stdout.read()
            elif fd == self._stderr.fd:
                self._stderr.read()
            elif fd == self._control_fd:
                self._read_control()
            elif self._replies is not None:
                for cell, reply in self._replies.take():
                    self._reply(cell, reply)

    def _read_worker(self) -> bytes:
        """What the worker sent, once; nothing if there was nothing, or if that was the end."""
        try:
            data = self.links.worker.recv(_READ)
        except BlockingIOError:
            return b""
        except ConnectionResetError:
            data = b""
        if not data:
            self._eof = True
        return data

    def _take_all(self, data: bytes) -> bool:
        """Take in what the worker sent; whether that was the result and nothing before it."""
        if not data:
            return False
        connection = self.links.connection
        whole = connection.between_messages
        try:
            for message in connection.receive(data):
                self._take(message)
                whole = whole and self._result is not None
        except RemoteProtocolError:
            self._breach = "protocol"
            self._eof = True
            self._kill_worker()
        return whole

    def _take(self, message: WorkerMessage) -> None:
        kind = type(message)
        if kind is Result:
            assert isinstance(message, Result)
            if message.cell != self.cell:
                raise RemoteProtocolError("the result of another cell")
            self._result = message
        elif isinstance(message, Call):
            self._take_call(message)
        elif isinstance(message, Answered):
            self._take_answer(message)
        else:
            self._asked = message

    def _take_call(self, call: Call) -> None:
        if call.cell != self.cell or self._clocks is None or self._result is not None:
            self._send(refusal(call.call, "Cancelled", "the cell that made this call has ended"))
            return
        if call.call in self._open:
            raise RemoteProtocolError("a call number is used twice")
        paged = PAGING.get(call.name)
        if paged is not None:
            args, _ = arguments(call)
            if len(self.outbox) > _MOST_PAGED:
                self._send(refusal(call.call, "TooManyCalls", "earlier pages are not read yet"))
            else:
                self._send(paged(self.history, call, args))
            return
        function = self._offers.functions.get(call.name)
        if function is None or self._replies is None:
            self._send(
                refusal(call.call, "NameError", f"the host offers no function {call.name!r}")
            )
        elif len(self._open) >= MAX_OPEN_CALLS:
            message = f"{MAX_OPEN_CALLS} calls to the host are open"
            self._send(refusal(call.call, "TooManyCalls", message))
        elif sum(each.size for each in self._open.values()) + size(call) > MAX_OPEN_BYTES:
            message = f"open calls to the host have arguments of {MAX_OPEN_BYTES:,} bytes"
            self._send(refusal(call.call, "TooManyCalls", message))
        else:
            self._open[call.call] = running = Running(size(call))
            self._clocks.call_begins(_monotonic(), self.cpu_seconds())
            put = functools.partial(self._replies.put, self.cell)
            self._executor.start(function, call, self._offers.places(call.name), running, put)

    def _reply(self, cell: int, reply: Reply) -> None:
        """Send the reply of a finished call, unless the cell that made it is over.

        Call numbers start again with each worker; only with the cell do they name one call.
        """
        if cell != self.cell or reply.call not in self._open or self._clocks is None:
            return
        del self._open[reply.call]
        self._clocks.call_ends(_monotonic(), self.cpu_seconds())
        self._send(reply)

    def _take_answer(self, answered: Answered) -> None:
        if answered.cell != self.cell or self._clocks is None or self._result is not None:
            self._send(refusal(answered.call, "Cancelled", "the cell that answered has ended"))
            return
        try:
            self._answers.keep(answered.answer, self._on_answer)
        except ValueError as error:
            self._send(refusal(answered.call, "ValueError", str(error)))
            return
        self._send(Reply(answered.call, True, b"null"))

    def _read_control(self) -> None:
        try:
            message = control.receive(self.links.control)
        except BlockingIOError:
            return
        except OSError:
            message = None
        if message is None:
            self._notice = {"died": 0, "status": signal.SIGKILL, "cpu": 0.0, "init": True}
            self._eof = True
        elif "interrupted" in message:
            with self._interrupt_lock:
                # One that its worker did not live to get is not waited for any more.
                self._unacknowledged = max(0, self._unacknowledged - 1)
        elif "held" in message:
            self.links.held = message["held"]
        elif "revived" in message:
            self._revived = message
        elif "branched" in message:
            if message["number"] == self._branches:  # else of a call that was given up
                self._branched = message["branched"]
        elif "lost" in message:
            self._lost = tuple(message["lost"])
        elif 0 < message.get("died", 0) < self._born:
            self._cpu_of_dead += message["cpu"]  # of one that was replaced meanwhile
        elif "died" in message or "failed" in message:
            self._notice = message

    # ── what goes out ─────────────────────────────────────────────────────────────────────────

    def _send(self, message: HostMessage, descriptor: int | None = None) -> None:
        if not self.outbox.send(self.links.connection.send(message), descriptor):
            self._eof = True

    def _send_configured(self, message: HostMessage) -> None:
        """Send to a worker that may not know yet what the session offers."""
        if not self._configured:
            self._configured = True
            self._send(self._configure)
        self._send(message)

    def interrupt(self) -> None:
        """Raise KeyboardInterrupt in the running cell, if one runs. From any thread."""
        with self._interrupt_lock:
            if not self.running_since:
                return
            self._unacknowledged += 1
            self._tell_init({"op": "interrupt", "cell": self.cell})

    def breach(self, reason: KillReason, generation: int) -> None:
        """End the worker because a limit is passed. From any thread.

        `generation`: that of the worker which was seen to pass it. Its successor has not.
        """
        with self._interrupt_lock:
            if generation == self.generation and not self._replacing:
                self._breach = reason
                self._tell_init({"op": "kill", "reason": reason})

    def _kill_worker(self) -> None:
        self._tell_init({"op": "kill"})

    def _tell_init(self, message: control.Message, descriptors: tuple[int, ...] = ()) -> None:
        try:
            control.send(self.links.control, message, descriptors)
        except OSError:
            # init is gone; the end of file on its socket is read next and says so.
            self._unacknowledged = 0

    # ── the end of a cell, or of a worker ─────────────────────────────────────────────────────

    def _refuse_open_calls(self) -> None:
        for call, running in self._open.items():
            running.end()
            if not self._dead:
                self._send(refusal(call, "Cancelled", "the cell that made this call has ended"))
            if self._clocks is not None:
                self._clocks.call_ends(_monotonic(), self.cpu_seconds())
        self._open.clear()

    def _settle_interrupts(self) -> Generator[float, Ready_, None]:
        """No interrupt of this cell may strike the next: wait until init has sent them all."""
        deadline = _monotonic() + _NOTICE_TIMEOUT
        while self._unacknowledged > 0 and not self._dead:
            self._receive((yield deadline))
            if _monotonic() > deadline:
                self._kill_worker()
                self._eof = True  # nothing more is taken from it

    def _collect_death(self) -> Generator[float, Ready_, None]:
        """Wait for init's notice that the worker and all that it left are gone."""
        # Its socket is readable for ever now; who waited for it too would not wait but spin.
        self.descriptors = self.descriptors[1:]
        self.outbox = Outbox(self.links.worker)
        deadline = _monotonic() + _NOTICE_TIMEOUT
        killed = False
        while self._notice is None:
            self._receive((yield deadline))
            if _monotonic() >= deadline and self._notice is None:
                if killed:
                    raise SandboxError("the session's init does not answer; close the session")
                if self._breach is None:
                    self._breach = "protocol"
                self._kill_worker()
                killed, deadline = True, deadline + _NOTICE_TIMEOUT
        if "failed" in self._notice:
            raise SandboxError(f"the session's worker: {self._notice['message']}")

    def _death_reason(self, expired: Clock | None) -> KillReason:
        assert self._notice is not None
        if self._breach is not None:
            return self._breach
        status = self._notice["status"]
        if not os.WIFSIGNALED(status):
            return "exit"
        if os.WTERMSIG(status) == signal.SIGXCPU:
            return "cpu"
        # The kernel's own kill; but past its time, the cell was killed by init.
        group = self.links.group
        if expired is None and os.WTERMSIG(status) == signal.SIGKILL and group is not None:
            self._hit = group.hit()
            return "memory" if "memory" in self._hit else "signal"
        return "signal"

    def _revive(self) -> Generator[float, Ready_, State]:
        """Go on in the latest copy of the worker that has died, else with an empty one."""
        assert self._notice is not None
        if self._notice.get("init"):
            self.running_since = 0.0  # there is nothing to leave in order
            raise SessionClosed("the session's init process is gone; open another session")
        self._cpu_of_dead += self._notice["cpu"]
        # What it had before its first cell is nothing, and needs no copy.
        started = self._ran or self._assigned
        if self.keeps and started and (yield from self._wake_copy()):
            return "rolled_back"
        whole = self.keeps and not started
        yield from self._start_empty(whole=whole)
        return "rolled_back" if whole else "restarted"

    def branch(self, seed: int | None) -> Generator[float, Ready_, Links]:
        """Have a waiting copy fork another line of the session; what connects the host to it."""
        if not self.keeps:
            raise SandboxError("branch needs waiting copies: Sandbox(recovery='snapshot')")
        # Before it answers anything, the worker has a copy made of what it is now; but before its
        # first cell there need be none, until it is asked for one.
        for _ in range(1 if self._ran else 2):
            yield from self.ask(Fetch(ASK_FOR_COPY))
        ends = Ends()
        try:
            order = {"op": "branch", "cell": self.last_kept}
            order["seed"] = -1 if seed is None else seed
            self._branched, self._branches = None, self._branches + 1
            self._tell_init({**order, "number": self._branches}, tuple(ends.theirs))
            ends.close_theirs()
            deadline = _monotonic() + _REVIVE_TIMEOUT
            while self._branched is None:
                self._receive((yield deadline))
                if self._dead or _monotonic() > deadline:
                    raise SandboxError("the session's init does not answer; close the session")
            if not self._branched:
                raise SandboxError(
                    "the session could not be copied: there is no room for another process, or its "
                    "processes ended the copy"
                )
        except BaseException:
            ends.close()
            raise
        return ends.links(self.links)

    def check_offers(self, offers: Offers | None) -> None:
        """ValueError if the code of a branch would miss one of these, or know nothing of it."""
        if offers is not None and offers.differ(self._offers):
            names = sorted(row.name for row in self._offers.rows)
            raise ValueError(
                f"host must have the names of the session's functions, with their faces: {names}"
            )

    def line(
        self,
        links: Links,
        offers: Offers | None,
        on_answer: Callable[[Answer], None] | None,
    ) -> Core:
        """The logic of the branch at `links`, which has all that this session has.

        `offers` and `on_answer` may be its own; the names of functions stay.
        """
        core = Core(
            links,
            self.limits,
            self._rlimits,
            offers=self._offers if offers is None else offers,
            executor=self._executor,
            seed=None,
            answers=self._configure.answers,
            on_answer=self._on_answer if on_answer is None else on_answer,
            preloaded=True,
            states=self._states,
            ours=self.ours,
        )
        core.cell, core._ran, core._assigned = self.cell, list(self._ran), True
        core._configured = True
        core.history = self.history.copy()
        return core

    def begin_line(self) -> Generator[float, Ready_, tuple[str, ...]]:
        """Wait until this branch speaks; what of the session it could not take along."""
        deadline = _monotonic() + _REVIVE_TIMEOUT
        while not isinstance(self._asked, Restored):
            self._receive_new((yield deadline))
            if self._dead or _monotonic() > deadline:
                raise SandboxError("the branch did not come up")
        return self._asked.lost

    def rollback(self, cells: int) -> Generator[float, Ready_, tuple[str, ...]]:
        """Undo the last `cells` cells; what could not be brought back."""
        self._check_history(cells)
        self._begin_cell()
        ran = self._ran
        if cells == len(ran) and not self._assigned:
            yield from self._start_empty(whole=True)
        elif not (yield from self._wake_copy(ran[-cells - 1] if cells < len(ran) else 0)):
            raise SandboxError(
                f"no copy was made before the last {cells} cells, or it is gone: the session may "
                "have had no room for another process. It was left as it is"
            )
        lost, self._lost = self._lost, ()
        return lost

    def _check_history(self, cells: int) -> None:
        if isinstance(cells, bool) or not isinstance(cells, int):
            raise TypeError(f"n must be an int, not {type(cells).__name__}")
        if cells < 1:
            raise ValueError(f"n must be at least 1, not {cells}")
        if self._states < 0:
            raise SandboxError("rollback needs waiting copies: Sandbox(recovery='snapshot')")
        if cells > self._states:
            raise ValueError(
                f"n={cells}, but {self._states} earlier states are kept: Sandbox(history={cells})"
            )
        if cells > len(self._ran):
            raise ValueError(f"n={cells}, but {len(self._ran)} cells have run")

    def _wake_copy(self, cell: int | None = None) -> Generator[float, Ready_, bool]:
        """Whether the copy made after `cell` (None: the latest) was woken, and answers."""
        left = self._remaining()["CPU"] if "CPU" in self._rlimits else 0
        ours = self._order({"op": "revive", "cell": cell, "cpu_left": left})
        deadline = _monotonic() + _REVIVE_TIMEOUT
        while self._revived is None:
            self._receive((yield deadline))
            if _monotonic() > deadline or (self._notice is not None and self._notice.get("init")):
                raise SandboxError("the session's init does not answer; close the session")
        if not self._revived["revived"]:
            ours.close()
            self._replacing = False
            return False
        self._cpu_of_dead += self._revived["cpu"]
        self._born += 1
        self._adopt(ours)
        deadline = _monotonic() + _RESTORE_TIMEOUT
        while not isinstance(self._asked, Restored):
            self._receive_new((yield deadline))
            if self._dead or _monotonic() > deadline:
                return False
        restored = self._asked
        self._configured = True
        undone = [number for number in self._ran if number > restored.cell]
        self._ran = [number for number in self._ran if number <= restored.cell]
        self._lost = (*restored.lost, *self._revived["lost"])
        if undone and cell is None:
            self._lost += (f"what cells {undone[0]} to {undone[-1]} did: no later copy was made",)
        return True

    def _start_empty(self, *, whole: bool) -> Generator[float, Ready_, None]:
        """Have init start the next worker, empty; with `whole`, the files go back as well."""
        order = {"op": "start", "rlimits": self._remaining(), "files": whole}
        self._born += 1
        self._adopt(self._order(order))
        deadline = _monotonic() + _RESTART_TIMEOUT
        while not self.links.worker_pid:
            self._receive_new((yield deadline))
            if self._dead or _monotonic() > deadline:
                raise SandboxError(f"the session's worker did not start again: {self._notice}")
        if whole:
            self._read_control()
        self._configured = self._plain
        self._ran, self._assigned = [], False

    def _order(self, order: control.Message) -> socket.socket:
        """Give init an order, and with it the other end of what the next worker is to speak on."""
        self._revived = None
        with self._interrupt_lock:
            self._replacing = True
        ours, theirs = socket.socketpair()
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        ours.setblocking(False)
        with theirs:
            self._tell_init(order, (theirs.fileno(),))
        return ours

    def _adopt(self, worker: socket.socket) -> None:
        """Speak with another worker from now on, which has not said anything yet."""
        self.links.worker.close()
        self.links.worker, self.links.connection = worker, HostConnection()
        self.links.worker_pid = 0
        self._worker_fd = worker.fileno()
        self._name_descriptors()
        self.outbox = Outbox(worker)
        self._eof = False
        self._notice = self._breach = self._asked = None
        self._unacknowledged = 0

    def _receive_new(self, ready: Ready_) -> None:
        """As `_receive`, while the first word of a new worker is waited for."""
        for fd, _ in ready:
            if fd != self._worker_fd:
                self._receive([(fd, select.POLLIN)])
            elif self.links.worker_pid:
                self._take_all(self._read_worker())
            else:
                self._hear_new()

    def _hear_new(self) -> None:
        worker = self.links.worker
        try:
            self.links.worker_pid = read_ready(worker, self.links.connection)
        except RemoteProtocolError:  # whatever was woken is no copy of ours
            pass
        if not self.links.worker_pid:
            self._eof = True
            return
        worker.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 0)
        self._cpu_clock = process_cpu(self.links.worker_pid)
        with self._interrupt_lock:
            # What was seen while the last one was being ended is no longer so.
            self.generation += 1
            self._replacing = False
        try:
            for message in self.links.connection.receive(b""):  # what came in the same chunk
                self._take(message)
        except RemoteProtocolError:
            self._eof = True

    def _remaining(self) -> dict[str, int]:
        rlimits = dict(self._rlimits)
        if "CPU" in rlimits:
            rlimits["CPU"] = max(1, round(rlimits["CPU"] - self._cpu_of_dead))
        return rlimits

    def cpu_seconds(self) -> float:
        """CPU time of the session's workers so far."""
        try:
            return self._cpu_of_dead + _clock_gettime(self._cpu_clock)
        except OSError:
            # The process is gone; init's notice brings what it used.
            dead = 0.0 if self._notice is None else float(self._notice.get("cpu", 0.0))
            return self._cpu_of_dead + dead

    # ── questions between cells ───────────────────────────────────────────────────────────────

    def ask(
        self, question: HostMessage, memfd: int | None = None
    ) -> Generator[float, Ready_, WorkerMessage]:
        """Send a question, with a descriptor if given, and return the worker's answer."""
        self._begin_cell()
        self._asked = None
        yield from self._say(question, memfd)
        if self._dead:
            # The worker died between cells, and the question went nowhere: give it a new worker.
            yield from self._collect_death()
            yield from self._revive()
            self._asked = None
            yield from self._say(question, memfd)
        deadline = _monotonic() + max(self.limits.timeout, _RESTART_TIMEOUT)
        while self._asked is None and not self._dead:
            self._receive((yield deadline))
            if self._asked is None and _monotonic() >= deadline:
                self._kill_worker()
                break
        if self._asked is None:
            yield from self._collect_death()
            came_to = _STATES[(yield from self._revive())]
            raise SandboxError(f"the session did not answer; it was ended, and {came_to}")
        return self._asked

    def _say(self, question: HostMessage, memfd: int | None) -> Generator[float, Ready_, None]:
        """Send a question when all that was said before it is sent."""
        if not self._configured:
            self._configured = True
            self._send(self._configure)
        deadline = _monotonic() + max(self.limits.timeout, _RESTART_TIMEOUT)
        while self.outbox and not self._dead:
            self._receive((yield deadline))
            if _monotonic() >= deadline:
                self._kill_worker()
                break
        if not self._dead:
            self._send(question, memfd)

    def assigned(self) -> None:
        """The host has set a variable: there is a state before the first cell."""
        self._assigned = self._assigned or not self._ran

    # ── leaving in the middle ─────────────────────────────────────────────────────────────────

    def abandon(self) -> Generator[float, Ready_, None]:
        """The caller left amid a cell or a question: end that, and be ready for the next."""
        if self._is_asking:
            yield from self._outwait()
        self._stdout.begin(None)
        self._stderr.begin(None)
        if self.running_since and self._result is None and not self._dead:
            self.interrupt()
            deadline = _monotonic() + self.limits.grace
            while self._result is None and not self._dead:
                self._receive((yield deadline))
                if _monotonic() >= deadline:
                    self._kill_worker()
                    deadline += _NOTICE_TIMEOUT
        if self.running_since:
            yield from self._finish(None, "kept")

    @property
    def engaged(self) -> bool:
        """Whether the worker is at something that the next call would have to wait for."""
        return bool(self.running_since) or self._is_asking

    @property
    def _is_asking(self) -> bool:
        return self.links.connection.phase is Phase.ASKING

    def _outwait(self) -> Generator[float, Ready_, None]:
        """Take the answer that nobody wants; a worker that gives none is ended."""
        deadline = _monotonic() + self.limits.grace
        while self._is_asking and not self._dead:
            self._receive((yield deadline))
            if _monotonic() >= deadline:
                self._kill_worker()
                deadline += _NOTICE_TIMEOUT
        if self._dead:
            yield from self._collect_death()
            yield from self._revive()

    def close(self) -> None:
        """Drop what belongs to the host; the links are the sandbox's to end."""
        for running in list(self._open.values()):
            running.end()
        if self._replies is not None:
            self._replies.close()
