"""What passes between the host and a session's worker and init: sent, read, waited for.

Beneath all that a session does. Nothing here waits: what has to be waited for is a generator, which
yields the time at which it wants to be woken, and is resumed with the descriptors that are ready.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from typing import TypeAlias

from ..errors import SandboxError
from ..types import KillReason, Limits
from ..wire.messages import (
    MAX_DEPTH,
    MAX_DIGITS,
    Assign,
    Configure,
    HostMessage,
    WorkerMessage,
)
from ..zygote import control
from ..zygote.links import Links
from .lending import Lending
from .outbox import Outbox

Ready_: TypeAlias = "list[tuple[int, int]]"

# A worker dies within microseconds of its socket; init's notice follows. Longer means that code of
# the session closed the socket and lives on, or that the machine has no time for either.
NOTICE_TIMEOUT = 1.0
# Init obeys in milliseconds; a machine that is overloaded may not run it for seconds. Who does not
# obey by then will not.
INIT_TIMEOUT = 10.0

# Bytes that are read of a worker at a time, unless a driver says otherwise.
READ = 1 << 16
# Bytes of what a session begins with beside its template's, with names and what is said of each:
# one write to its socket.
_MOST_BEGUN_WITH = 1 << 14
# Of a variable's row in the header, beside its name, each of whose bytes may be an escape of six.
_ROW, _ESCAPE = 32, 6

_monotonic = time.monotonic


def _is_readable(variable: Assign) -> bool:
    """Whether any worker can read it: no JSON that may be too deep, or have too long a number."""
    data = variable.data
    return variable.kind != "json" or (
        len(data) <= MAX_DIGITS and data.count(b"[") + data.count(b"{") <= MAX_DEPTH
    )


class Exchange:
    """The links of one session, and what came in on them that concerns no cell."""

    def __init__(
        self,
        links: Links,
        limits: Limits,
        configure: Configure,
        *,
        plain: bool,
        wakes: tuple[int, ...],
    ) -> None:
        """`plain`: a worker need not be told `configure`. `wakes`: descriptors to wait for, too."""
        self.links = links
        self.limits = limits
        self.cell = 0
        self.running_since = 0.0  # for the watchdog; 0 while nothing runs
        self.generation = 0  # for the watchdog: another whenever the worker is
        # Whether init was told to end the worker, and there is no other yet.
        self._replacing = False
        self._configure = configure
        self._plain = plain
        self._configured = False  # whether this worker was told, or need not be
        self._silent_yet = True  # whether no worker was told anything so far
        self._init_was_told = False  # anything
        self._told_first = False  # whether one has got what it is told first
        self._begun_with = 0  # bytes of variables in that
        self.outbox = Outbox(links.worker)
        self.most_read = READ
        self._lending = Lending()
        # That of the worker's socket: of what drivers wait for, the one that the outbox says
        # what to wait for at.
        self.worker_fd = links.worker.fileno()
        self._control_fd = links.control.fileno()
        self._wakes = wakes
        self._cpu_clock: Callable[[], float] = float
        self._cpu_of_dead = 0.0
        self._interrupt_lock = threading.Lock()
        self._interrupted = 0  # the last cell that was
        self._unacknowledged = 0
        self._notice: control.Message | None = None
        self._breach: KillReason | None = None
        self._silent = False  # whether this worker was killed because nothing said that it is dead
        self._eof = False
        # Whether this worker's end was ordered: what it still says is not believed to stay.
        self._doomed = False
        self._asked: WorkerMessage | None = None
        self._lost: tuple[str, ...] = ()
        # Whether it was emptied between two cells, of which no outcome has told yet.
        self._emptied = False
        self._born = 1  # the generation of the worker, as init counts
        self._revived: control.Message | None = None
        self._branched: bool | None = None
        self._branches = 0  # that were asked for
        self._name_descriptors()

    # ── what a cell adds ──────────────────────────────────────────────────────────────────────

    def _begin_cell(self) -> None:
        """Forget the last cell."""
        raise NotImplementedError

    def _receive(self, ready: Ready_) -> None:
        """Take in what is there to read."""
        raise NotImplementedError

    def _take_all(self, data: bytes) -> bool:
        """Take in what the worker sent; whether that was the result and nothing before it."""
        raise NotImplementedError

    def _take(self, message: WorkerMessage) -> None:
        """Take in one message of the worker's."""
        raise NotImplementedError

    # ── what drivers need ─────────────────────────────────────────────────────────────────────

    def _name_descriptors(self) -> None:
        """What a driver waits for; the first is where the worker speaks."""
        links = self.links
        others = self._control_fd, links.stdout, links.stderr, *self._wakes
        self.descriptors: tuple[int, ...] = (self.worker_fd, *others)

    def _wait_also_for(self, wakes: tuple[int, ...]) -> None:
        if wakes != self._wakes:
            self._wakes = wakes
            self._name_descriptors()

    # ── what comes in ─────────────────────────────────────────────────────────────────────────

    @property
    def _dead(self) -> bool:
        return self._eof or self._notice is not None

    @property
    def _init_is_gone(self) -> bool:
        return self._notice is not None and "init" in self._notice

    def _read_worker(self) -> bytes:
        """What the worker sent, once; nothing if there was nothing, or if that was the end."""
        most = self.most_read
        if most < READ:
            # A frame that has begun may be large, and is looked at once it is whole.
            most = min(max(most, self.links.connection.missing), READ)
        try:
            data = self.links.worker.recv(most)
        except BlockingIOError:
            return b""
        except ConnectionResetError:
            data = b""
        if not data:
            self._eof = True
        return data

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

    def cpu_seconds(self) -> float:
        """CPU time of the session's workers so far."""
        try:
            return self._cpu_of_dead + self._cpu_clock()
        except OSError:
            # The process is gone; init's notice brings what it used.
            dead = 0.0 if self._notice is None else float(self._notice.get("cpu", 0.0))
            return self._cpu_of_dead + dead

    # ── what goes out ─────────────────────────────────────────────────────────────────────────

    def begins_with(self, variable: Assign) -> bool:
        """Have the session begin with `variable`; False if it has begun, or that is too much.

        It goes with what the first worker is told first, and costs no question of its own. What a
        worker might have to refuse is asked.
        """
        size = self._begun_with + _ROW + _ESCAPE * len(variable.name.encode()) + len(variable.data)
        if not self._silent_yet or size > _MOST_BEGUN_WITH or not _is_readable(variable):
            return False
        self._begun_with = size
        variables = (*self._configure.variables, variable)
        self._configure = replace(self._configure, variables=variables)
        self._plain = self._configured = False
        return True

    def _say_first(self) -> None:
        """Tell a worker what is to be told to each before anything else."""
        self._silent_yet = False
        if self._configured:
            return
        self._configured = True
        if not self._plain:
            self._send(self._configure)
            self._told_first = not self._eof

    def _send(self, message: HostMessage, descriptors: Sequence[int] = ()) -> None:
        if not self.outbox.send(self.links.connection.send(message), descriptors):
            self._eof = True

    def withdraw(self) -> None:
        """Lend the worker nothing any more: who lent it takes it back."""
        self._lending.offer(None)

    def interrupt(self) -> None:
        """Raise KeyboardInterrupt in the running cell, if one runs. From any thread."""
        with self._interrupt_lock:
            if not self.running_since:
                return
            self._unacknowledged += 1
            self._interrupted = self.cell
            self._tell_init({"op": "interrupt", "cell": self.cell})

    @property
    def interrupting(self) -> bool:
        """Whether the running cell was interrupted, and has not ended yet. From any thread."""
        return bool(self.running_since) and self._interrupted == self.cell

    def breach(self, reason: KillReason, generation: int) -> None:
        """End the worker because a limit is passed. From any thread.

        `generation`: that of the worker which was seen to pass it. Its successor has not.
        """
        with self._interrupt_lock:
            if generation == self.generation and not self._replacing:
                self._breach = reason
                self._tell_init({"op": "kill", "reason": reason})

    def _kill_worker(self, after: int | None = None) -> None:
        """Have init kill the worker; but not before there is a copy of what cell `after` left."""
        self._doomed = True
        self._tell_init({"op": "kill"} if after is None else {"op": "kill", "after": after})

    def _tell_init(self, message: control.Message, descriptors: tuple[int, ...] = ()) -> None:
        self.tells_init()
        try:
            control.send(self.links.control, message, descriptors)
        except OSError:
            # init is gone; the end of file on its socket is read next and says so.
            self._unacknowledged = 0

    def tells_init(self) -> None:
        """Init is told something: from here on the session is not as it was made."""
        self._init_was_told = True

    @property
    def untouched(self) -> bool:
        """Whether nothing was told to any process of the session's, and all of them live."""
        return self._silent_yet and not self._init_was_told and not self._dead

    # ── what is waited for ────────────────────────────────────────────────────────────────────

    def _settle_interrupts(self) -> Generator[float, Ready_, None]:
        """No interrupt of this cell may strike the next: wait until init has sent them all."""
        deadline = _monotonic() + INIT_TIMEOUT
        while self._unacknowledged > 0 and not self._dead:
            self._receive((yield deadline))
            if _monotonic() > deadline:
                self._kill_worker()
                self._eof = True  # nothing more is taken from it

    def _turn_from_worker(self) -> None:
        """Wait no more for a dead one: its socket is readable for ever, and a wait would spin."""
        self.descriptors = tuple(fd for fd in self.descriptors if fd != self.worker_fd)
        self.outbox = Outbox(self.links.worker)
        self._lending.forget()

    def _collect_death(self) -> Generator[float, Ready_, None]:
        """Wait for init's notice that the worker and all that it left are gone."""
        self._turn_from_worker()
        deadline = _monotonic() + NOTICE_TIMEOUT
        while self._notice is None:
            self._receive((yield deadline))
            if _monotonic() >= deadline and self._notice is None:
                if self._silent:
                    raise SandboxError("the session's init does not answer; close the session")
                # Should it be dead already, the notice that comes late says how it died.
                self._silent = True
                self._kill_worker()
                deadline = _monotonic() + INIT_TIMEOUT
        if "failed" in self._notice:
            raise SandboxError(f"the session's worker: {self._notice['message']}")
