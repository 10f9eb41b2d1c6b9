"""`SessionBranch`: a worker, its waiting snapshots, and the host's commands about them.

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

from ..jail import processes, rlimits, session_directory, users
from ..jail.session_jail import Jail
from ..protocol import control_channel
from ..snapshots.snapshot_table import SnapshotTable
from ..snapshots.workspace_snapshots import ALL_REMOVED
from . import file_helper
from .worker_rollback import WorkerRollback

# Seconds that a worker to be killed may still take for the snapshot of the last cell's state: a
# fork and a few system calls, for which an overloaded machine may give it no processor. Code that
# prevents the snapshot gains no more than this, and loses that state.
_SNAPSHOT_GRACE = 5.0

_LOST_TOO_MANY = (
    "the state after the last cell, which had no snapshot: too many of its descriptors would be "
    "lost (at most three quarters of Limits.open_files)"
)


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
        self, branch: SessionBranch, message: control_channel.Message, descriptors: Sequence[int]
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
        # The cell whose snapshot must precede the worker's end, and the deadline of that.
        self._awaited_snapshot: tuple[int, float] | None = None

    @cached_property
    def _control(self) -> socket.socket:
        # Made when first needed: most sessions end before that.
        return control_channel.open_end(self.control_fd)

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
        self._empty_workspaces()
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
                self.rollback.end_members(set(), self.worker)
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
        self.rollback.end_members(set(), self.worker)
        self.rollback.files.remove()
        self.rollback.close()
        os.close(self.streams.stdout)
        os.close(self.streams.stderr)
        self.disconnect()

    def disconnect(self) -> None:
        """Report to the host, by end of file, that the branch has ended."""
        self._control.close()

    def _send(self, message: control_channel.Message) -> None:
        with suppress(OSError):  # the host has left, and its end of file is read next
            control_channel.send(self._control, message)

    def _empty_workspaces(self) -> None:
        """Empty the directory, which all branches share, if it exceeded its limit."""
        if not self._over_quota:
            return
        self._over_quota = False
        branches, slot = self._session.branches, self.jail.slot
        homes = [os.path.basename(branch.jail.home) for branch in branches if branch.jail.home]
        session_directory.clear(
            self.jail.folder, None if slot is None else users.own_id(slot), homes
        )
        for branch in branches:
            if branch is not self:
                branch._note_removed_files()
            elif self.rollback is not None:
                self.rollback.files.note_removed()

    def _note_removed_files(self) -> None:
        """Note that another branch's use has cost this one its files: the host reports it with the
        next cell.
        """
        self.table.note_file_changes()
        self._control.setblocking(False)  # the branch may be idle, and this may happen repeatedly
        self._send({"lost": [ALL_REMOVED]})
        self._control.setblocking(True)

    def _receive(self) -> tuple[control_channel.Message | None, list[int]]:
        self._control.setblocking(False)
        try:
            return control_channel.receive_with_descriptors(self._control)
        except OSError as error:
            if isinstance(error, BlockingIOError):
                raise
            return None, []
        finally:
            self._control.setblocking(True)

    # ── commands ────────────────────────────────────────────────────────────────────────────────

    def _interrupt(self, message: control_channel.Message, descriptors: Sequence[int]) -> None:
        # init is the parent, so the pid cannot have been reused.
        self.table.interrupted = message["cell"]  # before it can come
        if self.worker:
            os.kill(self.worker, signal.SIGINT)
        self._send({"interrupted": message["cell"]})

    def _kill(self, message: control_channel.Message, descriptors: Sequence[int]) -> None:
        self._over_quota = message.get("reason") == "workspace"
        if "after" not in message or self.rollback is None:
            self._awaited_snapshot = None
        elif self._awaited_snapshot is None:
            self._awaited_snapshot = message["after"], time.monotonic() + _SNAPSHOT_GRACE
        self.end_worker()

    @property
    def is_ending(self) -> bool:
        """True if its worker is about to be killed."""
        return self._awaited_snapshot is not None

    def end_worker(self) -> None:
        """Kill the worker, unless it still has to make a snapshot of a cell's state, and has
        time.
        """
        if self._awaited_snapshot is not None and self.rollback is not None:
            cell, until = self._awaited_snapshot
            copied = any(after == cell for _, after in self.rollback.rows())
            if not copied and time.monotonic() < until:
                return
        self._awaited_snapshot = None
        if self.worker:
            os.kill(self.worker, signal.SIGKILL)

    def _start(self, message: control_channel.Message, descriptors: Sequence[int]) -> None:
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

    def _revive(self, message: control_channel.Message, descriptors: Sequence[int]) -> None:
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

    def _keep(self, message: control_channel.Message, descriptors: Sequence[int]) -> None:
        assert self.rollback is not None
        with socket.socket(fileno=descriptors[0]) as host:
            request = control_channel.receive(host)
            if request is not None:
                self.rollback.keep_for_host(request["cell"])
            with suppress(OSError):
                control_channel.send(host, {})

    def _branch(self, message: control_channel.Message, descriptors: Sequence[int]) -> None:
        created = self._session.make_branch(self, message, descriptors)
        self._send({"branched": created, "number": message["number"]})

    def _files(self, message: control_channel.Message, descriptors: Sequence[int]) -> None:
        """Fork a file helper for the host's other end of a socket."""
        fd = descriptors[0]
        # If the worker died first: ending its processes would end the helper too.
        self._session.reap()
        try:
            pid = self._session.fork()
        except OSError as error:
            file_helper.refuse(fd, error)
            return
        if pid == 0:
            file_helper.run_file_helper(self.jail, fd)
        os.close(fd)
        if self.rollback is not None:
            self.rollback.trusted.add(pid)

    _COMMANDS: ClassVar[
        dict[str, Callable[[SessionBranch, control_channel.Message, Sequence[int]], None]]
    ] = {
        "interrupt": _interrupt,
        "kill": _kill,
        "start": _start,
        "revive": _revive,
        "keep": _keep,
        "branch": _branch,
        "files": _files,
    }
