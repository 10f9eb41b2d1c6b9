"""`Recovery`: replaces a dead worker, and returns a session to an earlier state.

The host's end of `init.worker_rollback`: it names the state, and speaks with the snapshot that is
activated, or with an empty worker if there is no snapshot.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Generator, Mapping

from ..errors import SandboxError, SessionClosed
from ..protocol import control_channel
from ..protocol.messages import Restored
from ..types import State
from .cells.cell_history import CellHistory
from .cells.running_cell import RunningCell
from .io import ReadyDescriptors, SessionIO
from .shielded_operations import ShieldedOperations

# A worker dies within microseconds of the end of its socket, and init's notice follows. A longer
# time means that code of the session closed the socket and lives on, or that the machine is
# overloaded.
NOTICE_TIMEOUT = 1.0
# Init answers in milliseconds; an overloaded machine may not run it for seconds. An init that has
# not answered by then never will.
INIT_TIMEOUT = 10.0
# A fork in init takes milliseconds.
RESTART_TIMEOUT = 10.0
# Init kills the processes and a snapshot opens its files in milliseconds, but the kernel has to
# free the memory of a large session, and on an overloaded machine each process involved may wait
# seconds for a processor.
REVIVE_TIMEOUT = 30.0
# An activated snapshot searches its objects, of which there may be millions, for lost resources.
_RESTORE_TIMEOUT = 10.0

# The error of a call whose session another thread, task or signal handler closes.
CLOSED_AMID = "the session was closed amid this call"

_NO_ANSWER = "the session's init does not answer; close the session"

_monotonic = time.monotonic


class Recovery:
    """The states of one session, and the way back to them.

    Attributes:
        has_snapshots: True if snapshots are kept at all.
        history: The cells that made the namespace.
    """

    def __init__(
        self,
        io: SessionIO,
        cell: RunningCell,
        completion: ShieldedOperations,
        rlimits: Mapping[str, int],
        snapshots: int,
    ) -> None:
        """`snapshots`: the number kept besides the current one; -1: the worker makes none."""
        self._io, self._cell, self._completion = io, cell, completion
        self._worker, self._init = io.worker, io.init
        self._rlimits = dict(rlimits)
        self._snapshots = snapshots
        self.has_snapshots = snapshots >= 0
        self.history = CellHistory()

    @property
    def awaited_cell(self) -> int | None:
        """The cell whose snapshot must exist before a worker is killed, lest its effects are lost;
        None: no cell.
        """
        return self.history.last if self.history else None

    # ── after a death ─────────────────────────────────────────────────────────────────────────

    def replace(self) -> Generator[float, ReadyDescriptors, State]:
        """Read how the worker died, and start another."""
        yield from self.collect_death()
        return (yield from self.revive())

    def collect_death(self) -> Generator[float, ReadyDescriptors, None]:
        """Wait for init's notice that the worker and all its processes are gone."""
        worker = self._worker
        self._io.ignore_worker()
        deadline = _monotonic() + NOTICE_TIMEOUT
        while worker.notice is None:
            self._io.receive((yield deadline))
            if _monotonic() >= deadline and worker.notice is None:
                if worker.is_unresponsive:
                    raise SandboxError(_NO_ANSWER)
                # If the worker is dead already, the late notice has its exit status.
                worker.is_unresponsive = True
                self._init.kill_worker()
                deadline = _monotonic() + INIT_TIMEOUT
        if "failed" in worker.notice:
            raise SandboxError(f"the session's worker: {worker.notice['message']}")

    def revive(self) -> Generator[float, ReadyDescriptors, State]:
        """Continue in the latest snapshot of the dead worker, else with an empty worker."""
        worker = self._worker
        assert worker.notice is not None
        if worker.init_is_gone:
            self._cell.running_since = 0.0  # nothing is left to clean up
            if self._io.closing:
                raise SessionClosed(CLOSED_AMID)
            raise SessionClosed(
                "the session's init process is gone, or belongs to the process that forked this "
                "one; open another session"
            )
        worker.cpu_of_ended += worker.notice["cpu"]
        worker.notice["cpu"] = 0.0  # this may be tried again
        # The state before the first cell is empty, and needs no snapshot.
        if self.has_snapshots and self.history and (yield from self._activate_snapshot()):
            return "rolled_back"
        restores_files = self.has_snapshots and not self.history
        yield from self._start_empty(restores_files=restores_files)
        return "rolled_back" if restores_files else "restarted"

    # ── going back ────────────────────────────────────────────────────────────────────────────

    def rollback(self, cells: int) -> Generator[float, ReadyDescriptors, tuple[str, ...]]:
        """Undo the last `cells` cells; return what could not be restored."""
        self._check_history(cells)
        before = self.history.before(cells)
        self._cell.clear()
        worker_number = self._worker.worker_number
        if not (yield from self._completion.of(self._return_to(before))):
            if self._worker.worker_number != worker_number:
                raise SandboxError(
                    f"the snapshot from before the last {cells} cells ended when it was activated; "
                    "the session is empty now"
                )
            raise SandboxError(
                f"there is no snapshot from before the last {cells} cells: the session may "
                "have had no room for another process, or too many descriptors that would be lost "
                "(at most three quarters of Limits.open_files). The session is unchanged"
            )
        lost, self._worker.lost = self._worker.lost, ()
        return lost

    def _return_to(self, cell: int | None) -> Generator[float, ReadyDescriptors, bool]:
        """Return whether the session has the state after `cell`; None: the empty one.

        Otherwise the session is unchanged, or empty if the snapshot was activated and ended.
        """
        if cell is not None:
            worker_number = self._worker.worker_number
            activated = yield from self._activate_snapshot(cell)
            if not activated and self._worker.worker_number != worker_number:
                yield from self._start_empty(restores_files=False)
            return activated
        yield from self._start_empty(restores_files=True)
        return True

    def _check_history(self, cells: int) -> None:
        if isinstance(cells, bool) or not isinstance(cells, int):
            raise TypeError(f"n must be an int, not {type(cells).__name__}")
        if cells < 1:
            raise ValueError(f"n must be at least 1, not {cells}")
        if self._snapshots < 0:
            raise SandboxError(
                "rollback needs snapshots: use Sandbox(recovery='snapshot') on a kernel that "
                "supports them"
            )
        if cells > self._snapshots:
            raise ValueError(
                f"n={cells}, but the session keeps {self._snapshots} earlier states; use "
                f"Sandbox(history={cells})"
            )

    def _activate_snapshot(
        self, cell: int | None = None
    ) -> Generator[float, ReadyDescriptors, bool]:
        """Return whether the snapshot of `cell` (None: the latest) was activated and answers."""
        cpu_left = self._remaining()["CPU"] if "CPU" in self._rlimits else 0
        worker = self._command_worker({"op": "revive", "cell": cell, "cpu_left": cpu_left})
        try:
            revived = yield from self._await_activation()
        except BaseException:
            worker.close()
            raise
        if not revived["revived"]:
            worker.close()
            self._init.keep_worker()
            self._worker.lost = tuple(revived["lost"])
            return False
        self._worker.cpu_of_ended += revived["cpu"]
        self._worker.worker_number += 1
        self._io.use_worker(worker)
        deadline = _monotonic() + _RESTORE_TIMEOUT
        while not isinstance(self._io.answer, Restored):
            self._io.receive_new((yield deadline))
            if self._worker.dead or _monotonic() > deadline:
                return False
        restored = self._io.answer
        self._io.configuration.restored()
        undone = self.history.go_back(restored.cell)
        self._worker.lost = (*restored.lost, *revived["lost"])
        if undone is not None and cell is None:
            first, last = undone
            self._worker.lost += (
                f"the effects of cells {first} to {last}: no later snapshot was made",
            )
        return True

    def _await_activation(self) -> Generator[float, ReadyDescriptors, control_channel.Message]:
        """Wait for init's report on the snapshot that it was to activate."""
        deadline = _monotonic() + REVIVE_TIMEOUT
        while self._init.revived is None:
            self._io.receive((yield deadline))
            if self._worker.init_is_gone or _monotonic() > deadline:
                raise SandboxError(_NO_ANSWER)
        return self._init.revived

    def _start_empty(self, *, restores_files: bool) -> Generator[float, ReadyDescriptors, None]:
        """Have init start an empty worker, and restore the files if `restores_files`."""
        command = {"op": "start", "rlimits": self._remaining(), "files": restores_files}
        worker = self._command_worker(command)
        self._worker.worker_number += 1
        self._io.use_worker(worker)
        deadline = _monotonic() + REVIVE_TIMEOUT
        while not self._io.links.worker_pid:
            self._io.receive_new((yield deadline))
            if self._worker.dead or _monotonic() > deadline:
                raise SandboxError(
                    f"the session's worker did not start again: {self._worker.notice}"
                )
        if restores_files:
            self._init.read()
        self._io.configuration.emptied(keeps_variables=restores_files)
        self.history.clear()

    def _command_worker(self, command: control_channel.Message) -> socket.socket:
        """Send init a command, with the socket of the next worker; return the host's end.

        Raises:
            SandboxError: this process has no free descriptors; nothing was done.
        """
        try:
            host_end, worker_end = socket.socketpair()
        except OSError as error:
            raise SandboxError(
                f"the session's next worker could not be connected: {error.strerror}; the kept "
                "state is intact, and the next call tries again"
            ) from error
        host_end.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        host_end.setblocking(False)
        with worker_end:
            self._init.request_worker(command, worker_end.fileno())
        return host_end

    def _remaining(self) -> dict[str, int]:
        rlimits = dict(self._rlimits)
        if "CPU" in rlimits:
            rlimits["CPU"] = max(1, round(rlimits["CPU"] - self._worker.cpu_of_ended))
        return rlimits
