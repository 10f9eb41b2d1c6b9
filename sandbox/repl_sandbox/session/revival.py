"""How a session goes on when its worker is dead, or is to be what it was some cells ago.

The host's end of `zygote.revival`: it names the state, and speaks with the copy that wakes up, or
with an empty worker where there is none.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Generator, Mapping
from dataclasses import replace
from typing import TypeVar

from ..errors import RemoteProtocolError, SandboxError, SessionClosed
from ..types import Limits, State
from ..wire.connection import HostConnection
from ..wire.messages import Configure, Restored
from ..zygote import control
from ..zygote.arrival import read_ready
from ..zygote.links import Links
from .exchange import Exchange, Ready_
from .outbox import Outbox
from .past import Past

# A fork in init takes milliseconds.
RESTART_TIMEOUT = 10.0
# Init ends what runs and a copy opens its files: milliseconds, but for the memory of a large
# session, which the kernel has to free; and on a machine that is overloaded each of those who take
# part in it may wait seconds for a processor.
REVIVE_TIMEOUT = 30.0
# What is woken then looks for what it lacks among its objects, of which there may be millions.
_RESTORE_TIMEOUT = 10.0

# What a call is told whose session is ended on purpose, by another thread, task or handler.
CLOSED_AMID = "the session was closed amid this call"

_T = TypeVar("_T")

_monotonic = time.monotonic


class Revival(Exchange):
    """A session's states, and the way back to them."""

    def __init__(
        self,
        links: Links,
        limits: Limits,
        configure: Configure,
        *,
        plain: bool,
        wakes: tuple[int, ...],
        rlimits: Mapping[str, int],
        states: int,
    ) -> None:
        """`states`: kept besides the current one; -1: no copies of the worker wait."""
        super().__init__(links, limits, configure, plain=plain, wakes=wakes)
        self._rlimits = dict(rlimits)
        self._states = states
        self.keeps = states >= 0
        self.closing = False  # whether the sandbox ends it, perhaps amid a call
        self._past = Past()
        # What init was asked for and must be heard out, whether or not the caller still waits.
        self._unfinished: Generator[float, Ready_, object] | None = None

    @property
    def last_kept(self) -> int:
        """The number of the last cell that made the namespace what it is; 0 before the first."""
        return self._past.last

    @property
    def _kept_first(self) -> int | None:
        """Of which cell there has to be a copy before the next may cost what that one did."""
        return self.last_kept if self._past else None

    def ready(self) -> None:
        """The worker is there; called once, before anything else is asked."""
        self._cpu_clock = self.links.cpu_clock()

    def assigned(self) -> None:
        """The host has set a variable: there is a state before the first cell."""
        self._past.assign()

    def _whole(
        self, steps: Generator[float, Ready_, _T], *, begun: bool = False
    ) -> Generator[float, Ready_, _T]:
        """What `steps` come to, none of which may be left out.

        Of a caller who leaves in the middle `abandon` takes them over, `begun`.
        """
        self._unfinished = steps
        try:
            wake = steps.send([]) if begun else next(steps)
            while True:
                wake = steps.send((yield wake))
        except StopIteration as end:
            self._unfinished = None
            result: _T = end.value
            return result

    def _replace(self) -> Generator[float, Ready_, State]:
        """Hear how the worker died, and go on with another."""
        yield from self._collect_death()
        return (yield from self._revive())

    def _revive(self) -> Generator[float, Ready_, State]:
        """Go on in the latest copy of the worker that has died, else with an empty one."""
        assert self._notice is not None
        if self._init_is_gone:
            self.running_since = 0.0  # there is nothing to leave in order
            if self.closing:
                raise SessionClosed(CLOSED_AMID)
            raise SessionClosed(
                "the session's init process is gone, or belongs to the process that forked this "
                "one; open another session"
            )
        self._cpu_of_dead += self._notice["cpu"]
        self._notice["cpu"] = 0.0  # should this have to be tried again
        # What it had before its first cell is nothing, and needs no copy.
        if self.keeps and self._past and (yield from self._wake_copy()):
            return "rolled_back"
        whole = self.keeps and not self._past
        yield from self._start_empty(whole=whole)
        return "rolled_back" if whole else "restarted"

    def rollback(self, cells: int) -> Generator[float, Ready_, tuple[str, ...]]:
        """Undo the last `cells` cells; what could not be brought back."""
        self._check_history(cells)
        before = self._past.before(cells)
        self._begin_cell()
        born = self._born
        if not (yield from self._whole(self._go_back(before))):
            if self._born != born:
                raise SandboxError(
                    f"the copy made before the last {cells} cells ended as it was woken; "
                    "the session is empty now"
                )
            raise SandboxError(
                f"no copy was made before the last {cells} cells, or it is gone: the session may "
                "have had no room for another process, or too many descriptors that would be lost "
                "(at most three quarters of Limits.open_files). It was left as it is"
            )
        lost, self._lost = self._lost, ()
        return lost

    def _go_back(self, cell: int | None) -> Generator[float, Ready_, bool]:
        """Whether the session is as it was after `cell`; None: empty.

        If not it is as it was, or empty if the copy of that state was woken and ended.
        """
        if cell is not None:
            born = self._born
            woken = yield from self._wake_copy(cell)
            if not woken and self._born != born:
                yield from self._start_empty(whole=False)
            return woken
        yield from self._start_empty(whole=True)
        return True

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

    def _wake_copy(self, cell: int | None = None) -> Generator[float, Ready_, bool]:
        """Whether the copy made after `cell` (None: the latest) was woken, and answers."""
        left = self._remaining()["CPU"] if "CPU" in self._rlimits else 0
        ours = self._order({"op": "revive", "cell": cell, "cpu_left": left})
        try:
            revived = yield from self._hear_of_copy()
        except BaseException:
            ours.close()
            raise
        if not revived["revived"]:
            ours.close()
            self._replacing = False
            self._lost = tuple(revived["lost"])
            return False
        self._cpu_of_dead += revived["cpu"]
        self._born += 1
        self._adopt(ours)
        deadline = _monotonic() + _RESTORE_TIMEOUT
        while not isinstance(self._asked, Restored):
            self._receive_new((yield deadline))
            if self._dead or _monotonic() > deadline:
                return False
        restored = self._asked
        self._configured = True
        undone = self._past.go_back(restored.cell)
        self._lost = (*restored.lost, *revived["lost"])
        if undone is not None and cell is None:
            first, last = undone
            self._lost += (f"what cells {first} to {last} did: no later copy was made",)
        return True

    def _hear_of_copy(self) -> Generator[float, Ready_, control.Message]:
        """What init says of the copy that it was to wake."""
        deadline = _monotonic() + REVIVE_TIMEOUT
        while self._revived is None:
            self._receive((yield deadline))
            if self._init_is_gone or _monotonic() > deadline:
                raise SandboxError("the session's init does not answer; close the session")
        return self._revived

    def _start_empty(self, *, whole: bool) -> Generator[float, Ready_, None]:
        """Have init start the next worker, empty; with `whole`, the files go back as well."""
        order = {"op": "start", "rlimits": self._remaining(), "files": whole}
        self._born += 1
        self._adopt(self._order(order))
        deadline = _monotonic() + REVIVE_TIMEOUT
        while not self.links.worker_pid:
            self._receive_new((yield deadline))
            if self._dead or _monotonic() > deadline:
                raise SandboxError(f"the session's worker did not start again: {self._notice}")
        if whole:
            self._read_control()
        if not whole and self._told_first:
            self._configure = replace(self._configure, variables=())
        self._configured = self._plain
        self._past.clear()

    def _order(self, order: control.Message) -> socket.socket:
        """Give init an order, and with it the other end of what the next worker is to speak on.

        Raises:
            SandboxError: this process may open no more descriptors; nothing was done.
        """
        try:
            ours, theirs = socket.socketpair()
        except OSError as error:
            raise SandboxError(
                f"the session's next worker could not be connected: {error.strerror}; what is kept "
                "of the session still is, and the next call tries again"
            ) from error
        self._revived = None
        with self._interrupt_lock:
            self._replacing = True
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
        self.worker_fd = worker.fileno()
        self._name_descriptors()
        self.outbox = Outbox(worker)
        self._lending.forget()
        self._eof = self._doomed = self._silent = False
        self._notice = self._breach = self._asked = None
        self._unacknowledged = 0

    def _receive_new(self, ready: Ready_) -> None:
        """As `_receive`, while the first word of a new worker is waited for."""
        for fd, _ in ready:
            if fd != self.worker_fd:
                self._receive([(fd, select.POLLIN)])
            elif self.links.worker_pid:
                self._take_all(self._read_worker())
            else:
                self._hear_new()

    def _hear_new(self) -> None:
        worker = self.links.worker
        try:
            self.links.worker_pid = read_ready(self.links)
        except BlockingIOError:
            return  # what is sent out of band wakes a reader, and is not read
        except (OSError, RemoteProtocolError):  # whatever was woken is no copy of ours
            pass
        if not self.links.worker_pid:
            self._eof = True
            return
        worker.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 0)
        self._cpu_clock = self.links.cpu_clock()
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
