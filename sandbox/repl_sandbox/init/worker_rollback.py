"""`WorkerRollback`: returns a session to an earlier state: ends its processes, activates a
snapshot.

Init's end of `snapshots.snapshot_processes`. The snapshot table is only a hint: init activates
nothing but an existing process of the session, which then speaks to the host on its socket as any
worker of that session may.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Collection, Container, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from ..jail import mounts, processes, rlimits, session_directory
from ..jail.session_jail import Jail
from ..native import process_forks, snapshot
from ..protocol.snapshot_signals import WAKE_SIGNAL
from ..snapshots.snapshot_channel import SnapshotChannel
from ..snapshots.snapshot_messages import BRANCHED, COMMAND, KEEP
from ..snapshots.snapshot_resources import SnapshotResources
from ..snapshots.snapshot_table import Row, SnapshotTable
from ..snapshots.workspace_snapshots import WorkspaceSnapshots
from .process_ownership import is_child, is_stopped

# Milliseconds between checks whether the worker still exists, and their number: for eight seconds,
# less than the host waits. A worker that waits for the command forks in milliseconds, unless
# it is not scheduled; and while the machine stands still, init does not check either.
_CHECK_INTERVAL, _MAX_CHECKS = 20, 400
# The number of checks for which one of a stopped worker counts: code has stopped the worker.
_STOPPED_WEIGHT = 3
# The number of other messages meanwhile: code of the session can send them without end.
_MAX_MESSAGES = 10_000


class RolledBackWorker(NamedTuple):
    """The activated snapshot, 0 for none; CPU seconds of the worker before it; files it lacks."""

    pid: int
    cpu: float
    lost: list[str]


class WorkerRollback:
    """The rollback of one branch. Iterating gives the descriptors that its init keeps.

    The files of its workspace belong to its state: `files` keeps and restores them.
    """

    def __init__(
        self, jail: Jail, worker_fd: int, table: SnapshotTable, channel: SnapshotChannel
    ) -> None:
        self.jail = jail
        self._folder = jail.folder
        # The scope of "all processes" if the session has branches; None: all in the namespace.
        self.members: Callable[[], list[int]] | None = None
        self._max_snapshots = jail.snapshots
        self.trusted: set[int] = set()  # processes of init's own code
        self.table = table
        self._worker_fd = worker_fd
        self.channel = channel
        self.files = WorkspaceSnapshots(jail, self.channel, self.table, self.trusted)

    def __iter__(self) -> Iterator[int]:
        return iter(self.channel)

    @property
    def worker_end(self) -> int:
        """The descriptor of workers and snapshots."""
        return self.channel.worker_end.fileno()

    def close(self) -> None:
        """Close the connections to workers and snapshots."""
        self.channel.close()
        self.table.close()

    def resources(self) -> SnapshotResources:
        """In a worker: the resources of its snapshots."""
        return SnapshotResources(
            self.table,
            self.channel.worker_end,
            self._max_snapshots,
            self._workspace(),
            process_forks.fork_beside,
            process_forks.fork_beside_threads,
            snapshot.prepare(WAKE_SIGNAL),
            rlimits.SPARE_FILES,
        )

    def _workspace(self) -> str:
        own = f"{self._folder}/{session_directory.WORKSPACE}" if self._folder else mounts.WORKSPACE
        return self.jail.home or own

    def forget(self) -> None:
        """Forget all snapshots and the snapshot helper, which are gone."""
        self.table.write(())
        self.channel.discard_messages()
        self.files.forget()
        self.channel.renew()

    def handle_input(self, ready: Container[int]) -> None:
        """Handle one message of a worker, if there is one."""
        if not self.files.handle_input(ready):
            return
        with suppress(BlockingIOError):
            kind, cell = self.channel.receive()
            if kind == KEEP:
                self.files.keep(cell, self._snapshot_cells())

    def keep_for_host(self, cell: int) -> None:
        """Keep the files as those after `cell`, because the host has changed them."""
        self.files.keep_for_host(cell, self._snapshot_cells())

    def _snapshot_cells(self) -> list[int]:
        """The cells that have snapshots."""
        return [cell for _, cell in self.rows()]

    def stop_processes(self) -> None:
        """Stop the processes of the dead worker, until the host decides."""
        if self.members is not None:
            processes.stop_all(self.members)
        elif self._folder:
            processes.stop_children()
        else:
            _signal_all(signal.SIGSTOP)
        for pid in self.trusted:
            _signal(pid, signal.SIGCONT)

    def activate(self, worker: int, cell: int | None, cpu_left: int, fd: int) -> RolledBackWorker:
        """End all processes except the snapshot of `cell` (None: the latest) and the earlier ones.

        `worker` is killed as well, 0 if it is dead. The snapshot gets `fd` to speak on. A living
        worker stays if there is no such snapshot.
        """
        rows = self.rows()
        index = _index(rows, cell)
        if index is None and worker:
            return RolledBackWorker(0, 0.0, [])
        # An activated snapshot continues with init's list of the earlier ones.
        remaining = [] if index is None else rows[: index + 1]
        self.stop_processes()
        cpu = self._end_all({pid for pid, _ in remaining} | self.files.processes, worker)
        # The earlier ones stay stopped until they are needed.
        if not remaining or not _signal(remaining[-1][0], signal.SIGCONT):
            return RolledBackWorker(0, cpu, [])
        pid, after = remaining[-1]
        # The others are those that it can return to. Its own list is partly outdated.
        self.table.write([row for row in remaining[:-1] if is_child(row[0])])
        lost = self.files.restore(after)
        self.channel.discard_messages()  # messages of a worker or a snapshot that is gone
        # First, because a snapshot that code has signalled before must not continue before this is
        # sent.
        _signal(pid, WAKE_SIGNAL)
        if not self.channel.send_command(COMMAND.pack(pid, cpu_left, -1, 0), [fd], wait=True):
            return RolledBackWorker(0, cpu, [])
        return RolledBackWorker(pid, cpu, lost)

    def end_members(self, excluded: set[int], worker: int) -> float:
        """As `_end_all`, of this branch alone; other dead children are not reaped."""
        assert self.members is not None
        cpu = 0.0
        members = self.members
        while others := processes.stop_all(lambda: set(members()) - excluded):
            for pid in others:
                _signal(pid, signal.SIGKILL)
            for pid in others:
                # A process that is no child becomes one when its parent dies, and is found again.
                with suppress(ChildProcessError):
                    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
            if worker in others:
                _, _, usage = os.wait4(worker, 0)
                cpu, worker = usage.ru_utime + usage.ru_stime, 0
        return cpu

    def fork_branch(
        self, forker: int, seed: int, workspace: str, descriptors: Sequence[int]
    ) -> tuple[int, WorkerRollback] | None:
        """Have the worker with id `forker` fork a branch; return its id and its rollback.

        `seed`: of its random numbers, -1 to continue the current state. `descriptors`: its worker
        socket, stdout, stderr, snapshot table.
        """
        worker, stdout, stderr, table = descriptors
        path = os.fsencode(workspace)
        jail = replace(self.jail, home=workspace, descriptors=set(), findings={})
        rollback = WorkerRollback(
            jail, self._worker_fd, SnapshotTable(table), SnapshotChannel(self._worker_fd)
        )
        command = COMMAND.pack(forker, 0, seed, len(path)) + path
        passed = [worker, rollback.channel.worker_end.fileno(), table, stdout, stderr]
        self.files.finish_keeping()
        pid = self._command_branch(forker, command, passed)
        if pid is None:
            # A worker that gets the next command must not read this one.
            self.channel.discard_messages()
            rollback.files.remove()  # what the worker has copied for it
            rollback.close()
            return None
        return pid, rollback

    def _command_branch(
        self, forker: int, command: bytes, descriptors: Sequence[int]
    ) -> int | None:
        """Return the process that the worker reports as forked; it may be any child of init's."""
        self.channel.discard_messages()  # late messages of a stopped worker, and unread ones
        # Code of the session may keep the other end from being read, and must not block init.
        if not self.channel.send_command(command, descriptors, wait=False):
            return None
        checks = unrelated = 0
        while checks < _MAX_CHECKS and unrelated < _MAX_MESSAGES and is_child(forker):
            message = self.channel.next_message(_CHECK_INTERVAL)
            if message is None:
                checks += _STOPPED_WEIGHT if is_stopped(forker) else 1
            elif message[0] == KEEP:
                unrelated += 1
            else:
                kind, number = message
                is_report = kind == BRANCHED and number not in (forker, *self.trusted)
                return number if is_report and is_child(number) else None
        return None

    def clear(self) -> list[str]:
        """End all processes, and restore the files from before the first cell.

        Return the names of those that could not be restored.
        """
        self.stop_processes()
        self._end_all(self.files.processes, 0)
        self.table.write(())
        self.channel.discard_messages()
        return self.files.restore(0)

    def rows(self) -> list[Row]:
        """The end of the table, without impossible rows: each is a child, and none is init's own.

        No more rows than there may be snapshots, because a listed process is not ended with the
        others: one of each state that is kept, of the current one, and of one that is replacing
        another.
        """
        listed = {pid: cell for pid, cell in self.table.read() if pid not in self.trusted}
        return [(pid, cell) for pid, cell in listed.items() if is_child(pid)][
            -self._max_snapshots - 2 :
        ]

    def _end_all(self, excluded: set[int], worker: int) -> float:
        """Kill and reap all processes of the session but `excluded`; return the CPU seconds of
        `worker`.
        """
        if self.members is not None:
            return self.end_members(excluded, worker)
        cpu = (
            processes.end_children(excluded, worker)
            if self._folder
            else _end_others(excluded, worker)
        )
        self.note_reaped(excluded)
        return cpu

    def note_reaped(self, excluded: Collection[int] = ()) -> None:
        """Note that all processes but `excluded` were reaped: their numbers may be reused."""
        self.trusted.intersection_update(excluded)


def _end_others(excluded: Container[int], worker: int) -> float:
    """As `processes.end_children`, of all in this pid namespace."""
    cpu = 0.0
    while others := [pid for pid in _all_processes() if pid not in excluded]:
        for pid in others:
            _signal(pid, signal.SIGKILL)
        ended, _, usage = os.wait4(-1, 0)
        if ended == worker:
            cpu = usage.ru_utime + usage.ru_stime
    return cpu


def _index(rows: list[Row], cell: int | None) -> int | None:
    found = [index for index, row in enumerate(rows) if cell in (None, row[1])]
    return found[-1] if found else None


def _all_processes() -> list[int]:
    """All processes of this pid namespace except this one, which is its first."""
    return [int(name) for name in os.listdir("/proc") if name.isdecimal() and name != "1"]


def _signal_all(number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(-1, number)


def _signal(pid: int, number: int) -> bool:
    """Send a signal; return whether the process exists."""
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True
