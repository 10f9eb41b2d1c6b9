"""`SnapshotProcesses`: waiting forks of the worker, each with the session's state after a cell.

A snapshot only waits for init to activate it; then it is the session's worker, and everything since
it was made is undone. The session's code cannot notice it: it is not the worker's child, not in its
process group, and holds nothing open (see `lost_resources.py`). Its process id is visible to other
processes of the session: they are one trust domain.
"""

from __future__ import annotations

import _signal
import _socket
import _thread
import gc
import os
import resource
import socket
import stat
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from ..protocol.control import (
    HELD_SIGNALS,
    KEEP,
    KEPT,
    WAKE_SIGNAL,
    WORKER_MESSAGE,
    SnapshotCommand,
    read_command,
)
from . import lost_resources, shared_mappings
from .branch_files import BranchDirectories, instances
from .imports import loaded_class
from .lost_resources import LostResources, RestoredDirectory
from .namespace import Namespace
from .shared_mappings import SharedMapping
from .snapshot_table import Row, SnapshotTable

if TYPE_CHECKING:
    from ..native.forks import SnapshotFork


# Values that a worker and its snapshots pass on: resources, work after a fork, a takeover.


class PostForkWork(NamedTuple):
    """The actions of a worker after a fork, until its host has sent something.

    They run without Python, in `native/snapshot.c`.

    Attributes:
        host: The descriptor of the socket to its host.
        child: The address of 4 bytes for the snapshot's process id.
        half: The address and the value of the byte that is written then.
        ended: The process that is killed then; 0 for none.
        blocked: The signals that are blocked meanwhile, one bit for each from the first on.
    """

    host: int
    child: int
    half: tuple[int, int]
    ended: int
    blocked: int


# Restricts this process; returns descriptions of what it could not protect.
Protect: TypeAlias = Callable[[], list[str]]


@dataclass(frozen=True, slots=True)
class SnapshotResources:
    """The resources of a session's snapshots, made by its init before the first worker.

    `init_socket` connects the worker and the snapshots with init. `history` is the number of
    snapshots besides the current one. The files of `workspace` belong to a snapshot. A branch has
    a copy of them and of `temporary`, in a directory whose name begins with `branches`; what
    `protection` returns for this directory keeps the process that calls it from changing others,
    or names what it cannot protect. The forks are those of `native/forks.py`; `snapshot_fork` makes
    most snapshots. A process that takes over may use `spare_files` more descriptors than code.
    """

    table: SnapshotTable
    init_socket: socket.socket
    history: int
    workspace: str
    temporary: str
    branches: str
    protection: Callable[[str], Protect]
    fork_beside: Callable[[], int]
    fork_beside_threads: Callable[[], int]
    snapshot_fork: SnapshotFork
    spare_files: int = 0


@dataclass(frozen=True, slots=True)
class Takeover:
    """The facts for a snapshot, or a branch, that becomes a worker.

    Attributes:
        worker: The descriptor of the socket to its host.
        cell: The cell after which the snapshot was made.
        lost: The resources that it lacks.
        cpu_left: CPU seconds that the session may still use; 0 if they are not limited.
        directories: Of a branch: its own, and those that it leaves.
        losses: Of a branch: names of what it lacks by now; None while its files are not copied.
        mappings: Of a branch: the memory that it shares with other processes.
        seed: Of a branch: the seed of its random numbers; None to continue.
        announced: True if the host has the first message already, with all losses.
    """

    worker: int
    cell: int
    lost: LostResources
    cpu_left: int
    directories: BranchDirectories | None = None
    seed: int | None = None
    losses: Sequence[str] | None = None
    mappings: Sequence[SharedMapping] | None = None
    announced: bool = False


# `TakeoverGuards`: garbage collection off and more descriptors, until a takeover is complete.

# Taken once: code may replace those of the modules.
_is_collecting, _stop_collecting, _collect = gc.isenabled, gc.disable, gc.enable
_getrlimit, _setrlimit = resource.getrlimit, resource.setrlimit
_NOFILE, _UNLIMITED = resource.RLIMIT_NOFILE, resource.RLIM_INFINITY


class TakeoverGuards:
    """`spare_files`: the number of descriptors that a process that takes over may use besides."""

    def __init__(self, spare_files: int) -> None:
        self._spare_files = spare_files
        self._collects = False  # whether garbage collection was on
        self._file_limit = (0, 0)

    def hold_garbage(self) -> None:
        """Disable garbage collection.

        A collection may run code, and close lost descriptors, whose numbers the worker's own may
        have.
        """
        self._collects = self._collects or _is_collecting()
        _stop_collecting()

    def release_garbage(self) -> None:
        """Enable garbage collection, if it was on."""
        if self._collects:
            self._collects = False
            _collect()

    def begin(self) -> None:
        """Raise the limit of descriptors above the code's, and disable garbage collection."""
        self.hold_garbage()
        self._file_limit = _getrlimit(_NOFILE)
        _setrlimit(_NOFILE, (self._raised_limit(self._file_limit), self._file_limit[1]))

    def end(self) -> None:
        """Restore the limit of descriptors, and garbage collection."""
        _setrlimit(_NOFILE, self._file_limit)
        self.release_garbage()

    def file_limits(self) -> tuple[int, int]:
        """The most descriptors of the code, and of a process that takes over."""
        limit = _getrlimit(_NOFILE)
        return limit[0], self._raised_limit(limit)

    def _raised_limit(self, limit: tuple[int, int]) -> int:
        soft, hard = limit
        raised = soft + self._spare_files
        return raised if hard == _UNLIMITED else min(raised, hard)


# `WorkerSockets`: the sockets of a worker to its host and to its init, at high numbers.

_STDERR = 2
# Taken once: code may replace those of the modules.
_close = os.close
_dup2 = os.dup2
_get_inheritable = os.get_inheritable
_sysconf = os.sysconf


class WorkerSockets:
    """`host` is the descriptor of the socket to the host, `init` that of `init_socket`."""

    def __init__(self, host: int, init_socket: socket.socket) -> None:
        self.host = host
        self.init_socket: _socket.socket = init_socket
        self.init = init_socket.fileno()

    def is_connected(self) -> bool:
        """Return whether init can be reached.

        Code may have closed that descriptor; then no snapshot can be activated.
        """
        try:
            return not _get_inheritable(self.init)
        except OSError:
            return False

    def close_init(self) -> None:
        """Close the socket to init."""
        self.init_socket.close()

    def replace_init(self, fd: int) -> None:
        """Use `fd` in place of the socket to init, which is closed."""
        _close(self.init_socket.detach())
        self.init = fd

    def move_up(self, host: int, used: Collection[int]) -> None:
        """Move both sockets to the highest possible numbers outside `used`, the host's above.

        `host`: the new socket to the host.
        """
        limit, init = _sysconf("SC_OPEN_MAX"), self.init
        self.init_socket.detach()
        self.host = _move_below(host, limit, {*used, init})
        self.init = _move_below(init, self.host, used)
        # As made in C: `socket` wraps it in Python, which writes to more pages.
        self.init_socket = _socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, self.init)


def _move_below(fd: int, limit: int, used: Collection[int]) -> int:
    """Move `fd` to the highest number below `limit` that is not among `used`."""
    for number in range(limit - 1, fd if fd < limit else _STDERR, -1):
        if number not in used:
            try:
                _dup2(fd, number, inheritable=False)
            except OSError:
                continue
            _close(fd)
            return number
    return fd


# `FileChanges`: whether the files of a workspace have changed since the last check.

# The most files and directories to check and keep (workspace_versions.py): each takes microseconds,
# after every cell that changes one. More count as changed.
MAX_FILES = 10_000

# Nanoseconds. Two writes within this time may leave the same time of change: before Linux 6.13 that
# is the time of the last tick, of which there are at least a hundred a second.
_TICK = 20_000_000
# The clock of the last tick, CLOCK_REALTIME_COARSE of clock_gettime(2). On a machine that gets no
# processor for a moment it may stand still for many ticks.
_COARSE = 5

_Key = tuple[int, int, int, int, int]


class FileChanges:
    """The state of the directory `path`, by attributes that change with its content."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._seen: dict[str, _Key] = {}
        self._marker = 0
        self._fresh = False  # files may have changed again without a trace

    def changed(self, marker: int) -> bool:
        """Return whether anything is new or different since the last call.

        `marker` is a number that others change when they change something, or note its state.
        """
        others, self._marker = marker != self._marker, marker
        try:
            if not self._seen and not others and not os.listdir(self._path):
                return False
        except OSError:  # out of descriptors, or the directory is unreadable
            return True
        others = others or self._fresh
        seen = self._seen
        unsettled_since = unsettled()
        self._seen = _scan(self._path)
        self._fresh = any(key[4] >= unsettled_since for key in self._seen.values())
        return others or seen != self._seen


def unsettled() -> int:
    """Nanoseconds since 1970: a file that changed at that time or later can change once more and
    have the same time of change.
    """
    return min(time.time_ns() - _TICK, time.clock_gettime_ns(_COARSE))


def _scan(path: str) -> dict[str, _Key]:
    found: dict[str, _Key] = {}
    pending = [path]
    while pending and len(found) < MAX_FILES:
        try:
            with os.scandir(pending.pop()) as entries:
                for entry in entries:
                    status = entry.stat(follow_symlinks=False)
                    found[entry.path] = (
                        status.st_mode,
                        status.st_ino,
                        status.st_size,
                        status.st_mtime_ns,
                        status.st_ctime_ns,
                    )
                    if stat.S_ISDIR(status.st_mode):
                        pending.append(entry.path)
        except OSError:
            continue  # gone by now, or closed by its owner
    return found


_WAKES = (WAKE_SIGNAL,)
ALL_SIGNALS = tuple(_signal.valid_signals())  # but those that cannot be blocked

_getpid = os.getpid
_kill = os.kill
_getpgid = os.getpgid
_setpgid = os.setpgid
_sched_yield, _thread_time = os.sched_yield, time.thread_time
_sigmask, _sigwait = _signal.pthread_sigmask, _signal.sigwait
_BLOCK, _SETMASK = _signal.SIG_BLOCK, _signal.SIG_SETMASK
_SIGKILL = _signal.SIGKILL
_thread_count = _thread._count  # as the tests of threading use it

# Seconds for a snapshot to leave its worker's process group and close its files, which it does
# first, or for the process between a branch and its worker to end. CPU time of this process: while
# it is not scheduled, the other may not be either.
DETACH_SECONDS = 0.1
_UNKNOWN_MAPPINGS = "mapped files: the session cannot see its own mappings"


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
        self._workspace, self._temporary = resources.workspace, resources.temporary
        self._files = FileChanges(resources.workspace)
        self._reserved: set[int] = set()  # numbers of placeholders

    def restore_resources(self, takeover: Takeover, namespace: Namespace) -> list[str]:
        """In a snapshot that takes over: restore resources; return the names of the lost ones.

        Raises:
            OSError: there are no placeholders for them.
        """
        directory = RestoredDirectory(self._workspace, takeover.directories)
        lost, self._reserved = takeover.lost.restore(namespace, directory, self._reserved)
        if takeover.directories is None:
            lost += self._shared()
        else:
            lost += self._replace_mappings(takeover.mappings, takeover.directories)
        self._guards.end()
        return lost

    def _shared(self) -> list[str]:
        """In a snapshot that takes over: names of the memory that it shares with others."""
        return shared_mappings.lost((self.table.address,), self._workspace)

    def _replace_mappings(
        self, mappings: Sequence[SharedMapping] | None, directories: BranchDirectories
    ) -> list[str]:
        """In a branch: map copies in the place of `mappings`, also of those without a file; name
        those that cannot be copied.
        """
        if mappings is None:
            return [_UNKNOWN_MAPPINGS] if instances(loaded_class("mmap", "mmap")) else []
        others = []
        for mapping in filter(directories.is_to_copy, mappings):
            try:
                shared_mappings.move(mapping, directories.of_mapping(mapping.path))
            except OSError:
                others.append(mapping)
        return shared_mappings.names(others)

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
            self._reserved = lost_resources.still_placeholders(self._reserved)
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
        directories = self._directories_in(command.folder) if command.folder else None
        if directories is not None:
            self._workspace, self._temporary = directories.workspace[1], directories.temporary[1]
            self._files = FileChanges(self._workspace)
        seed = None if command.seed < 0 else command.seed
        return Takeover(self._sockets.host, self.cell, lost, command.cpu_left, directories, seed)

    def _directories_in(self, folder: str) -> BranchDirectories:
        return BranchDirectories.of(
            self._workspace, self._temporary, folder, self._resources.branches
        )


def has_threads() -> bool:
    """Return whether this process is known to have other threads, also those of C libraries."""
    try:
        return _thread_count() > 0 or os.stat("/proc/self/task").st_nlink - 2 > 1
    except OSError:
        return False
