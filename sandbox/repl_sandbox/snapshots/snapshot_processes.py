"""`SnapshotProcesses`: waiting forks of the worker, each with the session's state after a cell.

A snapshot only waits for init to activate it; then it is the session's worker, and everything since
it was made is undone. The session's code cannot notice it: it is not the worker's child, not in its
process group, and holds nothing open (see `descriptors`). Its process id is visible to other
processes of the session: they are one trust domain.
"""

from __future__ import annotations

import _signal
import _thread
import os
import time
from collections.abc import Collection
from contextlib import suppress
from typing import TYPE_CHECKING

from ..protocol.snapshot_signals import HELD_SIGNALS, WAKE_SIGNAL
from ..worker.namespace.main_namespace import Namespace
from . import lost_resources, shared_mappings
from .descriptors import placeholder_descriptors
from .descriptors.open_descriptors import RestoredDirectory
from .lost_resources import LostResources
from .snapshot_messages import KEEP, KEPT, WORKER_MESSAGE, SnapshotCommand
from .snapshot_messages import read as read_command
from .snapshot_resources import PostForkWork, SnapshotResources, Takeover
from .snapshot_table import Row
from .takeover_guards import TakeoverGuards
from .worker_sockets import WorkerSockets
from .workspace.file_changes import FileChanges

if TYPE_CHECKING:
    from ..native.snapshot import SnapshotFork

_WAKES = (WAKE_SIGNAL,)
ALL_SIGNALS = tuple(_signal.valid_signals())  # but those that cannot be blocked

_close, _getpid, _kill = os.close, os.getpid, os.kill
_getpgid, _setpgid = os.getpgid, os.setpgid
_sched_yield, _thread_time = os.sched_yield, time.thread_time
_sigmask, _sigwait = _signal.pthread_sigmask, _signal.sigwait
_BLOCK, _SETMASK = _signal.SIG_BLOCK, _signal.SIG_SETMASK
_SIGKILL = _signal.SIGKILL
_thread_count = _thread._count  # as the tests of threading use it

# Seconds for a snapshot to leave its worker's process group and close its files, which it does
# first, or for the process between a branch and its worker to end. CPU time of this process: while
# it is not scheduled, the other may not be either.
DETACH_SECONDS = 0.1


class SnapshotProcesses:
    """The snapshots of one worker. `due`: the state has changed since the last one was made."""

    def __init__(self, resources: SnapshotResources, worker: int) -> None:
        """`worker`: the descriptor of the worker's socket to its host."""
        self.due = False
        self.cell = 0  # the last that ran
        self.table = resources.table  # shared with init
        self._resources = resources
        self._sockets = WorkerSockets(worker, resources.init_socket)
        self._guards = TakeoverGuards(resources.spare_files)
        self._detaching = 0  # the snapshot that may not have left the process group yet
        self._rows: list[Row] = []
        self._workspace = resources.workspace
        self._files = FileChanges(resources.workspace)
        self._reserved: set[int] = set()  # numbers of placeholders

    def restore_resources(self, takeover: Takeover, namespace: Namespace) -> list[str]:
        """In a snapshot that takes over: restore resources; return the names of the lost ones.

        Raises:
            OSError: there are no placeholders for them.
        """
        old_workspace = takeover.workspaces[0] if takeover.workspaces else ""
        directory = RestoredDirectory(self._workspace, old_workspace)
        lost, self._reserved = takeover.lost.restore(namespace, directory, self._reserved)
        lost += self._shared() if takeover.shared is None else takeover.shared
        self._guards.end()
        return lost

    def _shared(self) -> list[str]:
        """In a snapshot that takes over: names of the memory that it shares with others."""
        return shared_mappings.lost((self.table.address,), self._workspace)

    def is_connected(self) -> bool:
        """As of `WorkerSockets`."""
        return self._sockets.is_connected()

    def make(self, *, waits_for_host: bool = False) -> Takeover | None:
        """Fork a waiting snapshot. Returns None at once here, and a value in the activated
        snapshot.

        With `waits_for_host` it may return here only when the host has sent something: Python code
        that runs before that writes to a hundred pages, which are then in memory twice.

        A failure is never fatal: the state before stays the one to return to.
        """
        self.due = False
        if self._detaching:  # not done yet after a cell that had no code to run
            self.wait_until_detached()
        threads = has_threads()
        lost = lost_resources.find(self._own(), threads=threads)
        if not self._fits(lost):
            return None
        snapshot_fork = None if threads or lost.descriptors else self._snapshot_fork()
        # Before the snapshot counts: no state may be restored without its files.
        if lost.descriptors:
            shared_mappings.touch(self._workspace, lost.descriptors)
        if self._files.changed(self.table.file_changes):
            init_socket = self._sockets.init_socket
            init_socket.sendall(WORKER_MESSAGE.pack(KEEP, self.cell))
            init_socket.recv(len(KEPT))
        before = _sigmask(_BLOCK, ALL_SIGNALS if snapshot_fork else HELD_SIGNALS)
        work = self._post_fork_work(before) if waits_for_host and snapshot_fork else None
        self._guards.hold_garbage()
        try:
            if snapshot_fork:
                pid = snapshot_fork(self._sockets.host, work)
            else:
                pid = self._fork(threads=threads)
        except OSError:
            pid = -1
        if pid == 0:
            return self._activated(lost, before, waits=snapshot_fork is None)
        self._guards.release_garbage()
        _sigmask(_SETMASK, before)
        if pid > 0:
            if work is None:
                self._keep(pid)
            else:
                self._rows = self._rows_with(pid)
            self._detaching = pid
        return None

    def _fits(self, lost: LostResources) -> bool:
        """Return whether a snapshot could take over with all its losses; if not, init is told."""
        fits = True
        if lost.descriptors or self._reserved:
            fits = lost.fits(*self._guards.file_limits(), len(self._reserved))
        if fits == self.table.loses_too_many:
            self.table.loses_too_many = not fits
        return fits

    def _activated(self, lost: LostResources, before: set[int], *, waits: bool = False) -> Takeover:
        """In the snapshot: take over, with `waits` once the snapshot is activated."""
        try:
            if waits:
                self._wait(lost)
            return self._take_over(lost, before)
        # Boundary: a failing snapshot must not become a second worker.
        except BaseException:  # noqa: BLE001
            os._exit(1)

    def warm_up(self, own: Collection[int]) -> None:
        """Run everything of `make` but the fork itself; `own`: all open descriptors."""
        self._own()
        lost_resources.find(own, threads=has_threads())
        self._files.changed(self.table.file_changes)
        if (snapshot_fork := self._snapshot_fork()) is not None:
            work = self._post_fork_work(_sigmask(_BLOCK, ()))
            snapshot_fork.prepare(self._sockets.host, work)
        self._rows = []

    def warm_up_takeover(self) -> Takeover:
        """Run everything of an activation, by a command to this process that has been sent."""
        return self._take_over(LostResources([]), _sigmask(_BLOCK, ()))

    def close(self) -> None:
        """Close the connection to init."""
        self._sockets.close_init()

    def _own(self) -> tuple[int, ...]:
        """The descriptors of the worker, and not of the session."""
        if self._reserved:  # but where the code has closed a placeholder
            self._reserved = placeholder_descriptors.placed(self._reserved)
        return (0, 1, 2, self._sockets.host, self._sockets.init, *self._reserved)

    def _snapshot_fork(self) -> SnapshotFork | None:
        """The function that makes a snapshot that waits as in `_wait`, if it can."""
        # It closes all descriptors from the worker's socket on.
        sockets = self._sockets
        return self._resources.snapshot_fork if sockets.init < sockets.host else None

    def _obsolete(self) -> int:
        """The snapshot that is obsolete when there is another, 0 for none."""
        rows = self._rows
        if rows and rows[-1][1] == self.cell:  # before the host set a variable
            return rows[-1][0]
        return rows[0][0] if len(rows) > self._resources.history else 0

    def _fork(self, *, threads: bool) -> int:
        resources = self._resources
        return resources.fork_beside_threads() if threads else resources.fork_beside()

    def wait_until_detached(self) -> None:
        """Wait until code cannot notice the last snapshot: in its process group, or by a pipe.

        As late as possible, because the snapshot runs on another processor meanwhile.
        """
        snapshot = self._detaching
        if snapshot:
            self._detaching = 0
            deadline = _thread_time() + DETACH_SECONDS
            try:
                while _getpgid(snapshot) != snapshot and _thread_time() < deadline:
                    _sched_yield()
            except OSError:
                pass  # it has died

    def _post_fork_work(self, blocked: Collection[int]) -> PostForkWork:
        """Return the work of `_keep` for the coming snapshot: its row in the table, and a wait."""
        child, half = self.table.write_inactive(self._rows_with(0))
        mask = sum(1 << (number - 1) for number in blocked) if blocked else 0
        valid_half = self.table.address, half
        return PostForkWork(self._sockets.host, child, valid_half, self._obsolete(), mask)

    def _rows_with(self, snapshot: int) -> list[Row]:
        """The table with a snapshot of this state, and without the obsolete one."""
        ended, rows = self._obsolete(), [*self._rows, (snapshot, self.cell)]
        if ended:  # the first, or the last
            del rows[0 if rows[0][0] == ended else -2]
        return rows

    def _keep(self, snapshot: int) -> None:
        ended, self._rows = self._obsolete(), self._rows_with(snapshot)
        self.table.write(self._rows)
        if ended:
            try:
                _kill(ended, _SIGKILL)
            except OSError:
                pass  # the session's code was first

    def _wait(self, lost: LostResources) -> None:
        """In the snapshot: close everything that is not its own, then wait to be activated."""
        _sigmask(_BLOCK, ALL_SIGNALS)
        with suppress(OSError):  # closed already, where fork hooks have run
            _close(self._sockets.host)  # the host must see end of file once the worker closes it
        if lost.descriptors:
            lost.release()
        # Leave the worker's process group, which its code may kill, but not its session, by which
        # init assigns the snapshot before the table lists it. Last, because the worker recognises
        # by it that the snapshot is done.
        _setpgid(0, 0)
        _sigwait(_WAKES)

    def _take_over(self, lost: LostResources, before: set[int]) -> Takeover:
        """In the activated snapshot: follow init's command."""
        self._guards.begin()
        with suppress(OSError):
            _close(self._sockets.host)  # where a snapshot fork could not
        init_socket = self._sockets.init_socket
        while (command := read_command(init_socket, _getpid(), wait=True)) is None:
            pass  # it was for one that died before it could read
        # The snapshots that still wait, as init has left the table.
        return self._become_worker(command, lost, before, self.table.read())

    def _become_worker(
        self, command: SnapshotCommand, lost: LostResources, before: set[int], rows: list[Row]
    ) -> Takeover:
        """Be the worker of the session, or of a branch, that has the snapshots `rows`."""
        while _signal.sigtimedwait(ALL_SIGNALS, 0) is not None:
            pass  # signals that the code has sent it, such as another WAKE_SIGNAL
        _sigmask(_SETMASK, before)
        self._rows = rows
        # Numbers that are opened again there, or kept.
        reserved = {*self._reserved, *(descriptor.fd for descriptor in lost.descriptors)}
        self._sockets.move_up(command.descriptors[0], reserved)
        workspaces = (self._workspace, command.workspace) if command.workspace else None
        if workspaces:
            self._workspace, self._files = command.workspace, FileChanges(command.workspace)
        seed = None if command.seed < 0 else command.seed
        return Takeover(self._sockets.host, self.cell, lost, command.cpu_left, workspaces, seed)


def has_threads() -> bool:
    """Return whether this process is known to have other threads, also those of C libraries."""
    try:
        return _thread_count() > 0 or os.stat("/proc/self/task").st_nlink - 2 > 1
    except OSError:
        return False
