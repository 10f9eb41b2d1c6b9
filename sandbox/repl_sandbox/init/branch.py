"""`SessionBranch`: a worker and its snapshots; commands about them: interrupt, kill, start.

A session starts with one branch, the original; each further one has a control socket of its own.
All branches of a session share its init, its namespaces and its users: they are one trust domain.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Protocol

from ..jail import mounts, processes, rlimits, session_directory
from ..jail.steps import Jail
from ..protocol import control
from ..worker.snapshot_table import SnapshotTable
from . import files
from .rollback import WorkerRollback
from .workspace import WorkspaceExcess

# Seconds that a worker to be killed may still take for the snapshot of the last cell's state: a
# fork and a few system calls, for which an overloaded machine may give it no processor.
_SNAPSHOT_GRACE = 5.0
# Seconds between two checks of that worker, the number of those that may find it at rest, and the
# CPU seconds that it may use: code that prevents the snapshot gains no more, and loses that state.
# In tier `confined` it rests while its fork is admitted by another process.
_CHECK_INTERVAL, _RESTS, _CPU = 0.02, 75, 0.5
# The same of a worker that takes over or begins, at each question of the host's.
_FIRST_RESTS, _FIRST_CPU = 10, 1.0

_LOST_TOO_MANY = (
    "the state after the last cell, which had no snapshot: too many of its descriptors would be "
    "lost (at most three quarters of Limits.open_files)"
)


class _AwaitedSnapshot:
    """The snapshot that must precede the worker's end, and whether it may still come."""

    def __init__(self, cell: int, worker: int) -> None:
        self.cell = cell
        self._attention = processes.Attention(worker, _RESTS, _CPU)
        self._next_check = now = time.monotonic()
        self._deadline = now + _SNAPSHOT_GRACE

    def may_come(self, *, waits_for_init: bool) -> bool:
        """Return whether the worker has not had the time for it yet."""
        now = time.monotonic()
        if waits_for_init or now < self._next_check:
            return now < self._deadline
        self._next_check = now + _CHECK_INTERVAL
        return now < self._deadline and not self._attention.is_elsewhere()


@dataclass(frozen=True, slots=True)
class BranchStreams:
    """Standard output and error of a branch; the original has those of init."""

    stdout: int
    stderr: int


class InitSession(Protocol):
    """The interface of init that a branch uses."""

    @property
    def branches(self) -> Sequence[SessionBranch]:
        """All branches of the session."""

    def fork(self) -> int:
        """Fork; 0 in the child."""

    def reap(self) -> None:
        """Reap dead children, and notify their branches."""

    def become_worker(self, branch: SessionBranch, fd: int) -> None:
        """Be the next worker of `branch`, on socket `fd`."""

    def make_branch(
        self, branch: SessionBranch, message: control.Message, descriptors: Sequence[int]
    ) -> bool:
        """Make a branch of `branch`; return whether there is one."""

    def leave(self, branch: SessionBranch) -> None:
        """Handle the end of the host's connection to `branch`."""


class SessionBranch:
    """One branch; `worker` is the process id of its worker, 0 while there is none."""

    def __init__(
        self,
        session: InitSession,
        jail: Jail,
        control_fd: int,
        worker: int,
        table: SnapshotTable,
        rollback: WorkerRollback | None,
        streams: BranchStreams | None = None,
    ) -> None:
        self.jail = jail
        self.control_fd = control_fd
        self.worker = worker
        self.table = table
        self.rollback = rollback
        self.streams = streams
        # Every worker so far leads a session (setsid(2)) that its children stay in.
        self.roots = {worker}
        self._session = session
        self._worker_number = 1
        self._over_quota = False
        self._awaited_snapshot: _AwaitedSnapshot | None = None
        self._attention: processes.Attention | None = None  # of a worker that takes over or begins

    @cached_property
    def _control(self) -> socket.socket:
        # Made when first needed: most sessions end before that.
        return control.open_end(self.control_fd)

    def directory(self, number: int) -> str:
        """The directory of the files of branch `number`, of this one."""
        home, folder = self.jail.home, self.jail.folder
        return session_directory.branch_directory(
            os.path.dirname(home) if home else folder or mounts.TEMPORARY, number
        )

    def snapshot_pids(self) -> set[int]:
        """The process ids of its waiting snapshots."""
        return set() if self.rollback is None else {pid for pid, _ in self.rollback.rows()}

    def died(self, status: int, cpu: float) -> None:
        """Handle the worker's death: end its processes, or stop them if a snapshot may take
        over.
        """
        self.worker, self._awaited_snapshot = 0, None
        if self.rollback is None:
            self.kill_all()
        else:
            self.rollback.stop_processes()
        self._note_excess()
        self._send({"died": self._worker_number, "status": status, "cpu": cpu})

    def handle_command(self) -> None:
        """Handle one command of the host, if there is one."""
        try:
            message, descriptors = self._receive()
        except BlockingIOError:
            return
        if message is None:
            self._session.leave(self)
            return
        self._COMMANDS[message["op"]](self, message, descriptors)

    def kill_all(self) -> None:
        """Send SIGKILL to every other process of the session, and wait until none is left."""
        if self.rollback is not None:
            self.rollback.forget()
            if self.rollback.members is not None:
                self.rollback.end_members(self.worker)
                return
            self.rollback.note_reaped()
        if self.jail.folder:
            processes.end_children()
            return
        try:
            os.kill(-1, signal.SIGKILL)
        except ProcessLookupError:
            return
        while True:
            try:
                os.wait4(-1, 0)
            except ChildProcessError:
                return

    def close(self) -> None:
        """End a branch: its processes, its files, its sockets."""
        assert self.rollback is not None
        assert self.streams is not None
        self.rollback.end_members(self.worker)
        self.rollback.files.remove()
        self.rollback.close()
        os.close(self.streams.stdout)
        os.close(self.streams.stderr)
        self.disconnect()

    def disconnect(self) -> None:
        """Report to the host, by end of file, that the branch has ended."""
        self._control.close()

    def _send(self, message: control.Message) -> None:
        with suppress(OSError):  # the host has left, and its end of file is read next
            control.send(self._control, message)

    def _note_excess(self) -> None:
        """If the directory, which all branches share, exceeded its limit: have this one's part
        made smaller, at once or when its files are restored.
        """
        if not self._over_quota:
            return
        self._over_quota = False
        others = [branch for branch in self._session.branches if branch is not self]
        directories = [each for branch in others for each in branch._directories()]
        excess = WorkspaceExcess(self.jail, self._directories(), directories)
        if self.rollback is None:
            self._send({"lost": excess.remove()})
        else:
            self.rollback.files.excess = excess

    def _directories(self) -> list[str]:
        """The paths of its directories in that of the session."""
        paths = files.workspace_path(self.jail), files.temporary_path(self.jail)
        return [path.removeprefix(f"{self.jail.folder}/") for path in paths]

    def _receive(self) -> tuple[control.Message | None, list[int]]:
        self._control.setblocking(False)
        try:
            return control.receive_with_descriptors(self._control)
        except OSError as error:
            if isinstance(error, BlockingIOError):
                raise
            return None, []
        finally:
            self._control.setblocking(True)

    # ── commands ────────────────────────────────────────────────────────────────────────────────

    def _interrupt(self, message: control.Message, descriptors: Sequence[int]) -> None:
        # init is the parent, so the pid cannot have been reused.
        self.table.interrupted = message["cell"]  # before it can come
        if self.worker:
            os.kill(self.worker, signal.SIGINT)
        self._send({"interrupted": message["cell"]})

    def _kill(self, message: control.Message, descriptors: Sequence[int]) -> None:
        self._over_quota = message.get("reason") == "workspace"
        if "after" not in message or self.rollback is None:
            self._awaited_snapshot = None
        elif self._awaited_snapshot is None:
            self._awaited_snapshot = _AwaitedSnapshot(message["after"], self.worker)
        self.end_worker()

    @property
    def is_ending(self) -> bool:
        """True if its worker is about to be killed."""
        return self._awaited_snapshot is not None

    def end_worker(self) -> None:
        """Kill the worker, unless it still has to make a snapshot of a cell's state, and has
        time.
        """
        awaited, rollback = self._awaited_snapshot, self.rollback
        if awaited is not None and rollback is not None and self.worker:
            copied = any(after == awaited.cell for _, after in rollback.rows())
            if not copied and awaited.may_come(waits_for_init=rollback.files.answer_due):
                return
        self._awaited_snapshot = None
        if self.worker:
            os.kill(self.worker, signal.SIGKILL)

    def _start(self, message: control.Message, descriptors: Sequence[int]) -> None:
        """Start the next worker, empty."""
        if self.rollback is not None:
            self.worker = 0
            if message["files"]:
                self._send({"lost": self.rollback.clear()})
            else:
                self.kill_all()
        self.jail.rlimits = rlimits.plan(message["rlimits"])
        self._worker_number += 1
        pid = self._session.fork()
        if pid == 0:
            self._session.become_worker(self, descriptors[0])
        os.close(descriptors[0])
        self._set_worker(pid)

    def _revive(self, message: control.Message, descriptors: Sequence[int]) -> None:
        """Activate the snapshot that the host names, and end all processes that started after it
        was made.
        """
        assert self.rollback is not None
        revived = self.rollback.activate(
            self.worker, message["cell"], message["cpu_left"], descriptors[0]
        )
        os.close(descriptors[0])
        if revived.pid:
            self._worker_number += 1
            self._set_worker(revived.pid)
        lost = list(revived.lost)
        if message["cell"] is None and self.table.loses_too_many:
            # The snapshot is not of the last state.
            lost.append(_LOST_TOO_MANY)
        self.table.loses_too_many = False
        self._send({"revived": bool(revived.pid), "cpu": revived.cpu, "lost": lost})

    def _set_worker(self, worker: int) -> None:
        self.worker, self._awaited_snapshot = worker, None
        self.roots.add(worker)

    def _probe(self, message: control.Message, descriptors: Sequence[int]) -> None:
        """Tell the host whether the worker, which is to say its first word, does something else."""
        if self._attention is None or self._attention.pid != self.worker:
            self._attention = processes.Attention(self.worker, _FIRST_RESTS, _FIRST_CPU)
        self._send({"elsewhere": self._attention.is_elsewhere(), "worker": self._worker_number})

    def _keep(self, message: control.Message, descriptors: Sequence[int]) -> None:
        assert self.rollback is not None
        with socket.socket(fileno=descriptors[0]) as host:
            request = control.receive(host)
            if request is not None:
                self.rollback.keep_for_host(request["cell"])
            with suppress(OSError):
                control.send(host, {})

    def _branch(self, message: control.Message, descriptors: Sequence[int]) -> None:
        created = self._session.make_branch(self, message, descriptors)
        self._send({"branched": created, "number": message["number"]})

    def _files(self, message: control.Message, descriptors: Sequence[int]) -> None:
        """Fork a file helper for the host's other end of a socket."""
        fd = descriptors[0]
        # If the worker died first: ending its processes would end the helper too.
        self._session.reap()
        try:
            pid = self._session.fork()
        except OSError as error:
            files.refuse(fd, error)
            return
        if pid == 0:
            files.run_file_helper(self.jail, fd)
        os.close(fd)
        if self.rollback is not None:
            self.rollback.trusted.add(pid)

    _COMMANDS: ClassVar[
        dict[str, Callable[[SessionBranch, control.Message, Sequence[int]], None]]
    ] = {
        "interrupt": _interrupt,
        "kill": _kill,
        "start": _start,
        "revive": _revive,
        "probe": _probe,
        "keep": _keep,
        "branch": _branch,
        "files": _files,
    }
