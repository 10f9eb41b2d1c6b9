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
        was_used: True if init has received anything; if so, another caller cannot have the session.
        unacknowledged: The number of interrupts that init has not yet reported as sent.
        worker_number: The number of the current worker, for threads that inspect processes.
        revived, branched: Init's reports on the last command to activate a snapshot, or to fork a
            branch.
    """

    def __init__(self, links: SessionLinks, worker: WorkerState, cell: RunningCell) -> None:
        self._links, self._worker, self._cell = links, worker, cell
        self.fd = links.control.fileno()
        self.was_used = False
        self.unacknowledged = 0
        self.worker_number = 0
        self.revived: control_channel.Message | None = None
        self.branched: bool | None = None
        self._branches = 0  # the number of ordered interrupts
        # True if init has the order to kill the worker, and there is no other worker yet.
        self._replacing = False
        self._interrupted = 0  # the last cell that was interrupted
        self._lock = threading.Lock()

    # ── commands ────────────────────────────────────────────────────────────────────────────────

    def send(self, message: control_channel.Message, descriptors: tuple[int, ...] = ()) -> None:
        """Send a message, with descriptors. `read` finds out whether init is gone."""
        self.was_used = True
        try:
            control_channel.send(self._links.control, message, descriptors)
        except OSError:
            self.unacknowledged = 0

    def kill_worker(self, after: int | None = None) -> None:
        """Have init kill the worker, but not before there is a snapshot of the state after cell
        `after`.
        """
        self._worker.kill_ordered = True
        self.send({"op": "kill"} if after is None else {"op": "kill", "after": after})

    def request_worker(self, order: control_channel.Message, end: int) -> None:
        """Have init replace the worker by another, which will speak on descriptor `end`."""
        self.revived = None
        with self._lock:
            self._replacing = True
        self.send(order, (end,))

    def request_branch(self, seed: int | None, ends: tuple[int, ...]) -> None:
        """Have init tell the worker to fork a branch, which is connected by `ends`."""
        self.branched, self._branches = None, self._branches + 1
        order = {"op": "branch", "seed": -1 if seed is None else seed, "number": self._branches}
        self.send(order, ends)

    def keep_worker(self) -> None:
        """Note that no other worker replaces this one."""
        self._replacing = False

    def note_new_worker(self) -> None:
        """Note that there is another worker: observations of the last one are void."""
        with self._lock:
            self.worker_number += 1
            self._replacing = False

    # ── from any thread ───────────────────────────────────────────────────────────────────────

    def interrupt(self) -> None:
        """Raise KeyboardInterrupt in the running cell, if one runs."""
        with self._lock:
            if not self._cell.running_since:
                return
            self.unacknowledged += 1
            self._interrupted = self._cell.number
            self.send({"op": "interrupt", "cell": self._cell.number})

    @property
    def interrupting(self) -> bool:
        """True if the running cell was interrupted and has not ended yet."""
        return bool(self._cell.running_since) and self._interrupted == self._cell.number

    def breach(self, reason: KillReason, worker_number: int) -> None:
        """Kill the worker because it exceeded a limit.

        `worker_number`: that of the worker that exceeded it; its successor is spared.
        """
        with self._lock:
            if worker_number == self.worker_number and not self._replacing:
                self._worker.breach = reason
                self.send({"op": "kill", "reason": reason})

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
            notice = {"died": 0, "status": signal.SIGKILL, "cpu": 0.0, "init": True}
            self._worker.notice, self._worker.eof = notice, True
        else:
            self._take(message)

    def _take(self, message: control_channel.Message) -> None:
        worker = self._worker
        if "interrupted" in message:
            with self._lock:
                # An interrupt that its worker did not live to get needs no acknowledgement.
                self.unacknowledged = max(0, self.unacknowledged - 1)
        elif "findings" in message:
            self._links.findings = message["findings"]
        elif "revived" in message:
            self.revived = message
        elif "branched" in message:
            if message["number"] == self._branches:  # else the report belongs to a cancelled call
                self.branched = message["branched"]
        elif "lost" in message:
            worker.lost = tuple(message["lost"])
        elif 0 < message.get("died", 0) < worker.worker_number:
            # the notice of a worker that was replaced meanwhile
            worker.cpu_of_ended += message["cpu"]
        elif "died" in message or "failed" in message:
            worker.notice = message
