"""`InitChannel`: the messages between the host and a session's init (pid 1)."""

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
        fd: The descriptor to wait for.
        told: Whether init has received anything; if so, another caller cannot have the session.
        unacknowledged: The number of interrupts that init has not yet reported as sent.
        generation: The number of the current worker, for threads that look at processes.
        revived, branched: Init's reports on the last order to activate a snapshot, or to fork a
            branch.
    """

    def __init__(self, links: SessionLinks, worker: WorkerState, cell: RunningCell) -> None:
        self._links, self._worker, self._cell = links, worker, cell
        self.fd = links.control.fileno()
        self.told = False
        self.unacknowledged = 0
        self.generation = 0
        self.revived: control_channel.Message | None = None
        self.branched: bool | None = None
        self._branches = 0  # the number of ordered interrupts
        # Whether init has the order to kill the worker, and there is no other worker yet.
        self._replacing = False
        self._interrupted = 0  # the last cell that was interrupted
        self._lock = threading.Lock()

    # ── orders ────────────────────────────────────────────────────────────────────────────────

    def tell(self, message: control_channel.Message, descriptors: tuple[int, ...] = ()) -> None:
        """Send a message, with descriptors. `read` finds out whether init is gone."""
        self.told = True
        try:
            control_channel.send(self._links.control, message, descriptors)
        except OSError:
            self.unacknowledged = 0

    def kill_worker(self, after: int | None = None) -> None:
        """Have init kill the worker, but not before there is a snapshot of the state after cell
        `after`.
        """
        self._worker.doomed = True
        self.tell({"op": "kill"} if after is None else {"op": "kill", "after": after})

    def order_worker(self, order: control_channel.Message, end: int) -> None:
        """Have init replace the worker by another, which will speak on descriptor `end`."""
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
        """Note that no other worker replaces this one."""
        self._replacing = False

    def worker_came(self) -> None:
        """Note that there is another worker: observations of the last one are void."""
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
        """Whether the running cell was interrupted and has not ended yet."""
        return bool(self._cell.running_since) and self._interrupted == self._cell.number

    def breach(self, reason: KillReason, generation: int) -> None:
        """Kill the worker because it exceeded a limit.

        `generation`: that of the worker that exceeded it; its successor is spared.
        """
        with self._lock:
            if generation == self.generation and not self._replacing:
                self._worker.breach = reason
                self.tell({"op": "kill", "reason": reason})

    # ── notices ───────────────────────────────────────────────────────────────────────────────

    def read(self) -> None:
        """Read one message, if there is one."""
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
                # An interrupt that its worker did not live to get needs no acknowledgement.
                self.unacknowledged = max(0, self.unacknowledged - 1)
        elif "held" in message:
            self._links.held = message["held"]
        elif "revived" in message:
            self.revived = message
        elif "branched" in message:
            if message["number"] == self._branches:  # else the report belongs to a cancelled call
                self.branched = message["branched"]
        elif "lost" in message:
            worker.lost = tuple(message["lost"])
        elif 0 < message.get("died", 0) < worker.born:
            # the notice of a worker that was replaced meanwhile
            worker.cpu_of_dead += message["cpu"]
        elif "died" in message or "failed" in message:
            worker.notice = message
