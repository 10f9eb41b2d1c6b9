"""`InitChannel`: what the host tells a session's init (pid 1), and what init tells the host."""

from __future__ import annotations

import signal
import threading

from ...protocol import control_channel
from ...types import KillReason
from ...zygote.client.session_links import SessionLinks
from ..cells.running_cell import RunningCell
from .worker_state import WorkerState


class InitChannel:
    """The host's end of the control socket.

    Attributes:
        fd: the descriptor to wait for.
        told: whether init was told anything, after which a session is not as it was made.
        unacknowledged: interrupts that were ordered, and that init has not said to have sent.
        generation: another number for each worker, for threads that look at processes.
        revived, branched: what init said of the last order to wake a copy, or to fork a branch.
    """

    def __init__(self, links: SessionLinks, worker: WorkerState, cell: RunningCell) -> None:
        self._links, self._worker, self._cell = links, worker, cell
        self.fd = links.control.fileno()
        self.told = False
        self.unacknowledged = 0
        self.generation = 0
        self.revived: control_channel.Message | None = None
        self.branched: bool | None = None
        self._branches = 0  # that were ordered
        # Whether init was told to end the worker, and there is no other yet.
        self._replacing = False
        self._interrupted = 0  # the last cell that was
        self._lock = threading.Lock()

    # ── orders ────────────────────────────────────────────────────────────────────────────────

    def tell(self, message: control_channel.Message, descriptors: tuple[int, ...] = ()) -> None:
        """Send a message, with descriptors. That init is gone, `read` finds."""
        self.told = True
        try:
            control_channel.send(self._links.control, message, descriptors)
        except OSError:
            self.unacknowledged = 0

    def kill_worker(self, after: int | None = None) -> None:
        """Have init kill the worker; but not before there is a copy of what cell `after` left."""
        self._worker.doomed = True
        self.tell({"op": "kill"} if after is None else {"op": "kill", "after": after})

    def order_worker(self, order: control_channel.Message, end: int) -> None:
        """Have init end the worker and bring another one, which is to speak on descriptor `end`."""
        self.revived = None
        with self._lock:
            self._replacing = True
        self.tell(order, (end,))

    def order_branch(self, seed: int | None, ends: tuple[int, ...]) -> None:
        """Have init tell the worker to fork a branch, which is connected by `ends`."""
        self.branched, self._branches = None, self._branches + 1
        order = {"op": "branch", "seed": -1 if seed is None else seed, "number": self._branches}
        self.tell(order, ends)

    def worker_stays(self) -> None:
        """No other worker comes in place of this one."""
        self._replacing = False

    def worker_came(self) -> None:
        """Another worker is there: what was seen of the last one is no longer so."""
        with self._lock:
            self.generation += 1
            self._replacing = False

    # ── from any thread ───────────────────────────────────────────────────────────────────────

    def interrupt(self) -> None:
        """Raise KeyboardInterrupt in the running cell, if one runs."""
        with self._lock:
            if not self._cell.running_since:
                return
            self.unacknowledged += 1
            self._interrupted = self._cell.number
            self.tell({"op": "interrupt", "cell": self._cell.number})

    @property
    def interrupting(self) -> bool:
        """Whether the running cell was interrupted, and has not ended yet."""
        return bool(self._cell.running_since) and self._interrupted == self._cell.number

    def breach(self, reason: KillReason, generation: int) -> None:
        """End the worker because a limit is passed.

        `generation`: that of the worker which was seen to pass it. Its successor has not.
        """
        with self._lock:
            if generation == self.generation and not self._replacing:
                self._worker.breach = reason
                self.tell({"op": "kill", "reason": reason})

    # ── notices ───────────────────────────────────────────────────────────────────────────────

    def read(self) -> None:
        """Take in one message, if there is one."""
        try:
            message = control_channel.receive(self._links.control)
        except BlockingIOError:
            return
        except OSError:
            message = None
        if message is None:
            gone = {"died": 0, "status": signal.SIGKILL, "cpu": 0.0, "init": True}
            self._worker.notice, self._worker.eof = gone, True
        else:
            self._take(message)

    def _take(self, message: control_channel.Message) -> None:
        worker = self._worker
        if "interrupted" in message:
            with self._lock:
                # One that its worker did not live to get is not waited for any more.
                self.unacknowledged = max(0, self.unacknowledged - 1)
        elif "held" in message:
            self._links.held = message["held"]
        elif "revived" in message:
            self.revived = message
        elif "branched" in message:
            if message["number"] == self._branches:  # else of a call that was given up
                self.branched = message["branched"]
        elif "lost" in message:
            worker.lost = tuple(message["lost"])
        elif 0 < message.get("died", 0) < worker.born:
            worker.cpu_of_dead += message["cpu"]  # of one that was replaced meanwhile
        elif "died" in message or "failed" in message:
            worker.notice = message
