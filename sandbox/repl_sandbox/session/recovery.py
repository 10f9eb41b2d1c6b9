"""`Recovery`: replaces a dead worker, returns to earlier states; branches, and variables."""

from __future__ import annotations

import fcntl
import mmap
import os
import select
import signal
import socket
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import replace

from ..errors import SandboxError, SessionClosed, SessionDamaged
from ..host.links import SessionEndpoints, SessionLinks
from ..protocol import control
from ..protocol.connection import HostConnection, ProtocolPhase
from ..protocol.messages import Fetch, HostMessage, Restored, WorkerMessage
from ..types import Clock, KillReason, Limits, State
from ..worker.branch import ASK_FOR_BRANCH
from .io import ReadyDescriptors, SessionIO, ShieldedOperations
from .running_cell import CellHistory, LimitHits, RunningCell

# `BranchEndpoints`: the host's connections to a branch, made before the branch exists.

_ONE_PAGE = fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL


class BranchEndpoints(SessionEndpoints):
    """`SessionEndpoints` and one descriptor more for init: the snapshot table.

    Raises:
        SandboxError: this process has no free descriptors.
    """

    def __init__(self) -> None:
        try:
            super().__init__()
            self._add_table()
        except OSError as error:
            self.close()
            raise SandboxError(f"no branch could be connected: {error.strerror}") from error

    def _add_table(self) -> None:
        self.remote.append(os.memfd_create("states", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
        os.truncate(self.remote[-1], mmap.PAGESIZE)
        # Init maps the table, and would die of a bus error if code truncated the file. Besides, the
        # memory of a file that no process maps counts for no session.
        fcntl.fcntl(self.remote[-1], fcntl.F_ADD_SEALS, _ONE_PAGE)

    def links(self, parent: SessionLinks) -> SessionLinks:
        """Return the links of a branch of the session that `parent` connects to; the caller owns
        them.
        """
        control, worker, stdout, stderr = self.take()
        return replace(
            parent,
            worker_pid=0,
            control=control,
            worker=worker,
            stdout=stdout,
            stderr=stderr,
            connection=HostConnection(),
        )


# `Recovery`: replaces a dead worker, and returns a session to an earlier state.
#
# The host's end of `init/rollback.py`: it names the state, and speaks with the snapshot that
# is activated, or with an empty worker if there is no snapshot.

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
# Seconds between two questions to init whether it does: see `SessionBranch._probe`.
_PROBE_INTERVAL = 0.1

# The error of a call whose session another thread, task or signal handler closes.
CLOSED_AMID = "the session was closed amid this call"

_NO_ANSWER = "the session's init does not answer; close the session"

_monotonic = time.monotonic


class Recovery:
    """The states of one session, and the way back to them.

    Attributes:
        has_snapshots: True if snapshots are kept at all.
        history: The cells that made the namespace.
        limit_hits: The limits that the kernel enforced.
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
        self.limit_hits = LimitHits(io.links, cell, snapshots=self.has_snapshots)

    @property
    def awaited_cell(self) -> int | None:
        """The cell whose snapshot must exist before a worker is killed, lest its effects are lost;
        None: no cell.
        """
        return self.history.last if self.history else None

    def order_kill(self) -> float:
        """Have init kill the worker, and return the time at which to ask it again.

        SandboxError if init has not done it for so long that it never will.
        """
        now, worker = _monotonic(), self._worker
        worker.kill_deadline = worker.kill_deadline or now + REVIVE_TIMEOUT
        if now > worker.kill_deadline:
            raise SandboxError(_NO_ANSWER)
        # A worker that was not scheduled since may not have begun, nor have made its snapshot.
        self._init.kill_worker(self.awaited_cell)
        return now + NOTICE_TIMEOUT

    # ── after a death ─────────────────────────────────────────────────────────────────────────

    def replace(self) -> Generator[float, ReadyDescriptors, State]:
        """Read how the worker died between two cells, and start another."""
        yield from self.collect_death()
        self._worker.died_before = self._worker.died_before or self.death_reason(None)
        return (yield from self.revive())

    def death_reason(self, expired: Clock | None) -> KillReason:
        """Return how the worker died; `expired`: the clock of its cell that was over."""
        worker = self._worker
        assert worker.notice is not None
        if worker.breach is not None:
            return worker.breach
        status = worker.notice["status"]
        if not os.WIFSIGNALED(status):
            return "exit"
        if os.WTERMSIG(status) == signal.SIGXCPU:
            return "cpu"
        if os.WTERMSIG(status) != signal.SIGKILL:
            return "signal"
        if expired is not None:  # and init killed it
            return "signal"
        if (reason := self.limit_hits.kill_for_memory()) is not None:  # the kernel's own SIGKILL
            return reason
        # it had closed its socket, and lived on until then
        return "protocol" if worker.is_unresponsive else "signal"

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
                raise SessionDamaged(
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
                f"n={cells}, but the session keeps {self._snapshots} earlier states; give the "
                f"sandbox or the environment history={cells}"
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
        restored = yield from self.await_restored()
        if restored is None:
            return False
        self._io.configuration.restored()
        undone = self.history.go_back(restored.cell)
        self._worker.lost = (*restored.lost, *revived["lost"])
        if undone is not None and cell is None:
            first, last = undone
            self._worker.lost += (
                f"the effects of cells {first} to {last}: no later snapshot was made",
            )
        return True

    def await_restored(self) -> Generator[float, ReadyDescriptors, Restored | None]:
        """Return the new worker's report that it goes on from a snapshot, None if it is none.

        A busy machine may not run the worker for seconds. But a process that rests or computes
        meanwhile was forged by the session's code.
        """
        init, now = self._init, _monotonic()
        init.elsewhere = False
        probe, deadline = now + _PROBE_INTERVAL, now + _RESTORE_TIMEOUT
        while not isinstance(self._io.answer, Restored):
            self._io.receive_new((yield min(probe, deadline)))
            now = _monotonic()
            if self._worker.dead or init.elsewhere or now > deadline:
                return None
            if now >= probe:
                init.probe()
                probe = now + _PROBE_INTERVAL
        return self._io.answer

    def _await_activation(self) -> Generator[float, ReadyDescriptors, control.Message]:
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

    def _command_worker(self, command: control.Message) -> socket.socket:
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


# `NamespaceQueries`: requests to a session between its cells, and the answers.

_STATES: Mapping[State, str] = {
    "rolled_back": "has again what it had after its last cell",
    "restarted": "is empty now",
}


def _nothing() -> None:
    """The default `meanwhile`: nothing."""


class NamespaceQueries:
    """The requests to one session; a dead worker is replaced first."""

    def __init__(
        self,
        io: SessionIO,
        cell: RunningCell,
        recovery: Recovery,
        completion: ShieldedOperations,
        limits: Limits,
    ) -> None:
        self._io, self._cell, self._worker = io, cell, io.worker
        self._recovery, self._completion = recovery, completion
        self._grace = limits.grace
        self._timeout = max(limits.timeout, RESTART_TIMEOUT)

    def ask(
        self,
        query: HostMessage,
        memfd: int | None = None,
        *,
        meanwhile: Callable[[], None] = _nothing,
    ) -> Generator[float, ReadyDescriptors, WorkerMessage]:
        """Send a request and return the worker's answer; `memfd` is a file for the request.

        `meanwhile` is called while the worker is busy; its exception is raised after the answer.
        """
        try:
            return (yield from self._ask(query, memfd, meanwhile))
        finally:
            self._io.withdraw()

    def _ask(
        self, query: HostMessage, memfd: int | None, meanwhile: Callable[[], None]
    ) -> Generator[float, ReadyDescriptors, WorkerMessage]:
        self._cell.clear()
        self._io.answer = None
        yield from self._send(query, memfd)
        if self._worker.dead:
            # The worker died between cells and the request was lost: start another worker.
            yield from self._replace_worker()
            self._io.answer = None
            yield from self._send(query, memfd)
        failed: Exception | None = None
        try:
            meanwhile()
        except Exception as error:  # noqa: BLE001
            failed = error  # raised below: leaving now could cost the snapshot in progress
        deadline = _monotonic() + self._timeout
        while self._io.answer is None and not self._worker.dead:
            self._io.receive((yield deadline))
            if self._io.answer is None and _monotonic() >= deadline:
                self._io.init.kill_worker()
                break
        if self._io.answer is None:
            state = _STATES[(yield from self._replace_worker())]
            raise SessionDamaged(
                f"the session did not answer; its worker was killed, and the session {state}"
            )
        if failed is not None:
            raise failed
        return self._io.answer

    def _send(
        self, query: HostMessage, memfd: int | None
    ) -> Generator[float, ReadyDescriptors, None]:
        """Send a request, once all earlier data is sent."""
        self._io.send_configuration()
        deadline = _monotonic() + self._timeout
        while self._io.send_buffer and not self._worker.dead:
            self._io.receive((yield deadline))
            if _monotonic() >= deadline:
                self._io.init.kill_worker()
                break
        if not self._worker.dead:
            self._io.offer(memfd)
            self._io.send(query)

    @property
    def is_waiting(self) -> bool:
        """True if the worker has not answered the last question yet."""
        return self._io.links.connection.phase is ProtocolPhase.ASKING

    def discard_answer(self) -> Generator[float, ReadyDescriptors, None]:
        """Read an answer that no caller waits for; a worker that does not answer is killed."""
        deadline = _monotonic() + self._grace
        while (self.is_waiting or self._worker.kill_ordered) and not self._worker.dead:
            self._io.receive((yield deadline))
            if _monotonic() >= deadline:
                deadline = self._recovery.order_kill()
        if self._worker.dead:
            yield from self._replace_worker()

    def _replace_worker(self) -> Generator[float, ReadyDescriptors, State]:
        """Start another worker; the outcome of the next cell reports an empty namespace."""
        state = yield from self._completion.of(self._recovery.replace())
        self._worker.emptied = self._worker.emptied or state == "restarted"
        return state


# `Branches`: forks of a session's worker that become sessions with links of their own.

# If the worker ends at that moment, a snapshot takes over and gets the request again.
_MAX_WORKERS = 2


class Branches:
    """The branches of one session."""

    def __init__(
        self,
        io: SessionIO,
        queries: NamespaceQueries,
        recovery: Recovery,
        completion: ShieldedOperations,
    ) -> None:
        self._io, self._worker = io, io.worker
        self._queries, self._recovery, self._completion = queries, recovery, completion

    def make(
        self, seed: int | None, reserve: Callable[[], None]
    ) -> Generator[float, ReadyDescriptors, SessionLinks]:
        """Have the worker fork a branch, and return the links to it.

        `reserve` is called once, before the branch exists.
        """
        if not self._recovery.has_snapshots:
            raise SandboxError(
                "branch needs snapshots: use Sandbox(recovery='snapshot') on a kernel that "
                "supports them"
            )
        ends: BranchEndpoints | None = None

        def connect() -> None:
            nonlocal ends
            if ends is None:
                reserve()
            ends = BranchEndpoints()

        try:
            for _ in range(_MAX_WORKERS):
                # Before a worker answers anything, it makes a snapshot of its state; a worker that
                # has answered this query waits for the order.
                yield from self._queries.ask(Fetch(ASK_FOR_BRANCH), meanwhile=connect)
                assert ends is not None
                if (yield from self._completion.of(self._fork(seed, ends))):
                    return ends.links(self._io.links)
                ends.close()
                if not self._worker.dead:
                    break
        except BaseException:
            if ends is not None:
                ends.close()
            raise
        raise SandboxError(
            "the session could not be branched: there is no room for another process, too many of "
            "its descriptors would be lost (at most three quarters of Limits.open_files), or its "
            "processes ended the branch"
        )

    def _fork(
        self, seed: int | None, ends: BranchEndpoints
    ) -> Generator[float, ReadyDescriptors, bool]:
        """Return whether init has the worker fork a branch. The order is completed: meanwhile
        neither process reads a cell.
        """
        self._io.init.request_branch(seed, tuple(ends.remote))
        ends.close_remote()
        deadline = _monotonic() + REVIVE_TIMEOUT
        while self._io.init.branched is None:
            self._io.receive((yield deadline))
            if self._worker.init_is_gone or _monotonic() > deadline:
                raise SandboxError("the session's init does not answer; close the session")
            if self._worker.dead:
                self._io.ignore_worker()
        if not self._worker.dead:
            # The notice is about a worker that has just ended.
            self._io.receive([(self._io.worker_fd, select.POLLIN)])
        return self._io.init.branched

    def begin(self) -> Generator[float, ReadyDescriptors, tuple[str, ...]]:
        """Wait until the worker of this session, a branch, answers; return what it lost in the
        fork.
        """
        restored = yield from self._recovery.await_restored()
        if restored is None:
            raise SessionDamaged("the branch did not come up: processes of the session kept it")
        return restored.lost
