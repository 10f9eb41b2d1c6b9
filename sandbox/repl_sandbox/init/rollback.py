"""`WorkerRollback`: returns a session to an earlier state; which processes and files are whose."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from ..jail import landlock, processes, rlimits, session_directory
from ..jail.steps import Jail
from ..native import forks
from ..native.library import SyscallBatch
from ..protocol.control import BRANCHED, COMMAND, KEEP, WAKE_SIGNAL
from ..worker.snapshot_table import Row, SnapshotTable
from ..worker.snapshots import Protect, SnapshotResources
from . import files
from .snapshot_channel import SnapshotChannel
from .workspace import WorkspaceSnapshots

# Assigns the processes of a session to its branches.
#
# All descend from init's children. Init knows the workers and their snapshots among these;
# another child is an orphan and belongs to the session (setsid(2)) that it is in. An orphan that
# left that as well cannot be assigned; it counts for the original branch, and ends with it or
# with the session.

_EXITED = os.WEXITED | os.WNOHANG | os.WNOWAIT


def members(
    branches: Mapping[int, Collection[int]], branch: int | None, excluded: Collection[int]
) -> list[int]:
    """Return the living children of this process that are of `branch`, and their descendants.

    None: those of no branch. `branches`: the workers and snapshots of each, alive or not.
    `excluded`: children that belong to no branch. Processes of other branches are not read: there
    may be many.
    """
    owners = {root: key for key, roots in branches.items() for root in roots}
    return [
        pid
        for child in processes.children()
        if child not in excluded and is_child(child) and _owner(child, owners) == branch
        for pid in processes.descendants(child)
    ]


def is_child(pid: int) -> bool:
    """Return whether `pid` is a living child of this process: its number cannot be reused then.

    If init has the rights of the host's user, it must signal nothing else.
    """
    try:
        return pid > 0 and os.waitid(os.P_PID, pid, _EXITED) is None
    except (ChildProcessError, OverflowError):
        return False


def _owner(child: int, owners: Mapping[int, int]) -> int | None:
    if child in owners:
        return owners[child]
    try:
        return owners.get(os.getsid(child))
    except ProcessLookupError:
        return None


# Keeps a branch of a session from changing files that are not its own.
#
# Covers: every change of a file that Landlock restricts, by a ruleset that is added to the
# session's. Does not cover: attributes (chmod, utime), and mappings and descriptors that are
# there already.

_LONGEST_PATH = 4096
UNPROTECTED = (
    "write protection: paths of the session that this branch was made of can be written here"
)


class WriteProtection:
    """Keeps the branches of one worker from changing files that are not their own.

    But for the directories `common` to all branches in which there is nothing. The system calls are
    laid out once for all branches: each page that a branch writes to, or its worker after it,
    is a copy more.
    """

    def __init__(self, common: Sequence[str]) -> None:
        self._common = common
        self._own = ctypes.create_string_buffer(_LONGEST_PATH)  # of the next branch
        self._batches: dict[tuple[str, ...], SyscallBatch] = {}  # by the empty directories

    def of(self, own: str) -> Protect:
        """Return a function that restricts its process, which must have one thread, and all that it
        forks, to the branch with directory `own`.

        The function returns a sentence if that is not possible: too many rulesets are in force
        already, or the kernel has none. It has to be called before the next one is made.
        """
        try:
            if not session_directory.is_protected(own):
                return _unprotected
            for path in (own, *self._common):
                with suppress(FileExistsError):
                    os.mkdir(path, 0o700)
            empty = tuple(path for path in self._common if not _has_content(path))
            batch = self._batches.get(empty) or self._laid_out(empty)
            self._own.value = os.fsencode(own)
        except (OSError, ValueError):
            return _unprotected
        return partial(_run, batch)

    def _laid_out(self, empty: tuple[str, ...]) -> SyscallBatch:
        abi = landlock.kernel_abi()
        if not abi:
            raise OSError("the kernel has no Landlock")
        plan = landlock.of_changes(landlock.of_branch(empty), abi)
        rows = landlock.restrict_rows(plan, [(self._own, landlock.OWN)])
        self._batches[empty] = batch = SyscallBatch([("Landlock", rows)])
        return batch


def _run(batch: SyscallBatch) -> list[str]:
    try:
        batch.run()
    except OSError:
        return [UNPROTECTED]
    return []


def _unprotected() -> list[str]:
    return [UNPROTECTED]


def _has_content(folder: str) -> bool:
    """Return whether there are files of the session below `folder`, or empty directories.

    Neither mounts nor directories that lead to them count, nor those of branches.
    """
    waiting, inner = [folder], [folder]
    try:
        device = os.stat(folder).st_dev
        while waiting and inner:
            path = waiting.pop()
            if os.stat(path, follow_symlinks=False).st_dev != device:
                continue
            inner = [each for each in os.listdir(path) if not session_directory.is_of_branch(each)]
            waiting += [f"{path}/{each}" for each in inner]
            inner = inner or [folder] * (path == folder)
    except OSError:  # it is no directory, or closed
        return True
    return not inner


# `WorkerRollback`: returns a session to an earlier state: ends its processes, activates a
# snapshot.
#
# Init's end of `worker/snapshots.py`. The snapshot table is only a hint: init activates
# nothing but an existing process of the session, which then speaks to the host on its socket as
# any worker of that session may.

# Milliseconds between checks whether the worker still exists, and their number: for eight seconds,
# less than the host waits. A worker that waits for the command forks in milliseconds, unless
# it is not scheduled; and while the machine stands still, init does not check either.
_CHECK_INTERVAL, _MAX_CHECKS = 20, 400
# The checks that may find it at rest, and the CPU seconds that it may use: code prevents the
# branch. Its forks are admitted by another process in tier `confined`, which on a busy machine
# takes a second or two.
_RESTS, _CPU = 150, 2.0
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
            files.workspace_path(self.jail),
            files.temporary_path(self.jail),
            session_directory.BRANCH,
            self._protection(),
            forks.fork_beside,
            forks.fork_beside_threads,
            forks.prepare(WAKE_SIGNAL),
            rlimits.SPARE_FILES,
        )

    def _protection(self) -> Callable[[str], Protect]:
        """As of `WriteProtection`, where the tier protects files at all."""
        common = landlock.COMMON.get(self.jail.tier)
        return (lambda folder: list) if common is None else WriteProtection(common).of

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
        cpu = self._end_all({pid for pid, _ in remaining}, worker)
        # The earlier ones stay stopped until they are needed.
        if not remaining or not is_child(remaining[-1][0]):
            return RolledBackWorker(0, cpu, [])
        _signal(remaining[-1][0], signal.SIGCONT)
        pid, after = remaining[-1]
        # The others are those that it can return to. Its own list is partly outdated.
        self.table.write([row for row in remaining[:-1] if is_child(row[0])])
        lost = self.files.restore(after)
        self.channel.discard_messages()  # messages of a worker or a snapshot that is gone
        # First, because a snapshot that code has signalled before must not continue before this is
        # sent.
        _signal(pid, WAKE_SIGNAL)
        if not self.channel.send_command(COMMAND.pack(pid, cpu_left, -1, 0), [fd]):
            return RolledBackWorker(0, cpu, [])
        return RolledBackWorker(pid, cpu, lost)

    def end_members(self, worker: int) -> None:
        """End all processes of this branch."""
        self._end_all(set(), worker)

    def fork_branch(
        self, forker: int, seed: int, folder: str, descriptors: Sequence[int]
    ) -> tuple[int, WorkerRollback] | None:
        """Have the worker with id `forker` fork a branch; return its id and its rollback.

        `folder`: of its files. `seed`: of its random numbers, -1 to continue the current state.
        `descriptors`: its worker socket, stdout, stderr, snapshot table.
        """
        worker, stdout, stderr, table = descriptors
        path = os.fsencode(folder)
        home = f"{folder}/{session_directory.WORKSPACE}"
        jail = replace(self.jail, home=home, descriptors=set(), findings={})
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
        if not self.channel.send_command(command, descriptors):
            return None
        checks = unrelated = 0
        attention = processes.Attention(forker, _RESTS, _CPU)
        while checks < _MAX_CHECKS and unrelated < _MAX_MESSAGES and is_child(forker):
            message = self.channel.next_message(_CHECK_INTERVAL)
            if message is None:
                checks += 1
                if attention.is_elsewhere():
                    return None
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
        self._end_all(set(), 0)
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

    def _end_all(self, spared: set[int], worker: int) -> float:
        """Kill and reap all processes of the session but those in `spared` and the snapshot helper;
        return the CPU seconds of `worker`.

        Forged snapshots that run, and make processes without end, are not spared in the end.
        """
        cpu = 0.0
        for excluded in (spared | self.files.processes, set[int]()):
            seconds, complete = processes.end_all(partial(self._others, excluded), worker)
            cpu += seconds
            if self.members is None:
                self.note_reaped(excluded)
            if complete:
                break
        return cpu

    def _others(self, excluded: Container[int]) -> list[int]:
        """All processes of the session but `excluded`: those that live, and children to reap.

        A dead child of a spared process is its own to reap: a forged snapshot, which is stopped,
        never does.
        """
        children = set(processes.children())
        if self.members is not None:
            found = self.members()
        elif self._folder:
            found = [pid for child in children for pid in processes.descendants(child)]
        else:
            found = _all_processes()
        return [
            pid
            for pid in found
            if pid not in excluded and (pid in children or processes.is_alive(pid))
        ]

    def note_reaped(self, excluded: Collection[int] = ()) -> None:
        """Note that all processes but `excluded` were reaped: their numbers may be reused."""
        self.trusted.intersection_update(excluded)


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
