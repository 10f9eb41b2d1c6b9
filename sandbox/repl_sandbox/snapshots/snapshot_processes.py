"""`SnapshotProcesses`: waiting forks of the worker, each with the session's state after a cell.

A snapshot only waits for init to activate it; then it is the session's worker, and everything since
it was made is undone. The session's code cannot notice it: it is not the worker's child, not in its
process group, and holds nothing open (see `descriptors`). Its process id is visible to other
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
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from ..protocol.snapshot_signals import HELD_SIGNALS, WAKE_SIGNAL
from ..worker.namespace.main_namespace import Namespace
from . import lost_resources, shared_mappings
from .descriptors import placeholder_descriptors
from .descriptors.open_descriptors import DescriptorRange
from .lost_resources import LostResources
from .snapshot_messages import KEEP, KEPT, WORD, SnapshotCommand
from .snapshot_messages import read as read_order
from .snapshot_table import Row, SnapshotTable
from .workspace.file_changes import FileChanges

if TYPE_CHECKING:
    from ..native.snapshot import SnapshotFork

_WAKES = (WAKE_SIGNAL,)
ALL_SIGNALS = tuple(_signal.valid_signals())  # but those that cannot be blocked

_close, _getpid, _kill = os.close, os.getpid, os.kill
_dup2, _get_inheritable, _sysconf = os.dup2, os.get_inheritable, os.sysconf
_getpgid, _setpgid = os.getpgid, os.setpgid
_is_collecting, _stop_collecting, _collect = gc.isenabled, gc.disable, gc.enable
_getrlimit, _setrlimit = resource.getrlimit, resource.setrlimit
_NOFILE, _UNLIMITED = resource.RLIMIT_NOFILE, resource.RLIM_INFINITY
_sched_yield, _thread_time = os.sched_yield, time.thread_time
_sigmask, _sigwait = _signal.pthread_sigmask, _signal.sigwait
_BLOCK, _SETMASK = _signal.SIG_BLOCK, _signal.SIG_SETMASK
_SIGKILL = _signal.SIGKILL
_thread_count = _thread._count  # as the tests of threading use it

# Seconds for a snapshot to leave its worker's process group and close its files, which it does
# first, or for the process between a branch and its worker to end. CPU time of this process: while
# it is not scheduled, the other may not be either.
SETTLING = 0.1

_STDERR = 2


class SnapshotLeftover(NamedTuple):
    """The actions of a worker after a fork, until its host has sent something.

    They run without Python, in `native.snapshot`.

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


@dataclass(frozen=True, slots=True)
class SnapshotRecovery:
    """The resources of a session's snapshots, made by its init before the first worker.

    `orders` connects snapshots and the worker with init, `kept` is the number of states kept
    besides the current one, `workspace` the directory whose files belong to the state; the forks
    are those of `native.process_forks`; `snapshot_fork` makes most snapshots. A process that takes
    over has `spare_files` more numbers of descriptors than code has.
    """

    states: SnapshotTable
    orders: socket.socket
    kept: int
    workspace: str
    fork_beside: Callable[[], int]
    fork_beside_threads: Callable[[], int]
    snapshot_fork: SnapshotFork
    spare_files: int = 0


@dataclass(frozen=True, slots=True)
class Woken:
    """In a snapshot that takes over: the socket to speak on, its cell, its losses."""

    worker: int
    cell: int
    remains: LostResources
    cpu_left: int  # seconds that the session may still use; 0: not limited
    # Of a branch: the workspace that it leaves, and its own.
    moved: tuple[str, str] | None = None
    seed: int | None = None
    shared: list[str] | None = None  # as of `SnapshotProcesses._shared`, where that is known
    said: bool = False  # whether the host has its first message already, and files were copied


class SnapshotProcesses:
    """The snapshots of one worker. `due`: the state has changed since the last one was made."""

    def __init__(self, recovery: SnapshotRecovery, worker: int) -> None:
        self.due = False
        self.cell = 0  # the last that ran
        self.states = recovery.states  # the page that the worker shares with its init
        self._recovery = recovery
        self._worker = worker
        self._socket: _socket.socket = recovery.orders
        self._orders = recovery.orders.fileno()
        self._settling = 0  # the snapshot that may not have left the process group yet
        self._rows: list[Row] = []
        self._workspace = recovery.workspace
        self._files = FileChanges(recovery.workspace)
        self._reserved: set[int] = set()  # numbers of placeholders
        # In one that takes over, until that is done: whether the garbage collector is on, and the
        # limit of descriptors.
        self._collects, self._files_limit = False, (0, 0)

    def bring_back(self, woken: Woken, namespace: Namespace) -> list[str]:
        """In one that takes over: restore resources; return the names of the lost ones.

        Raises:
            OSError: there are no placeholders for them.
        """
        place = DescriptorRange(self._workspace, woken.moved[0] if woken.moved else "")
        lost, self._reserved = woken.remains.bring_back(namespace, place, self._reserved)
        lost += self._shared() if woken.shared is None else woken.shared
        _setrlimit(_NOFILE, self._files_limit)
        self._release_garbage()
        return lost

    def _shared(self) -> list[str]:
        """In one that takes over: names of the memory that it shares with others."""
        return shared_mappings.lost((self.states.address,), self._workspace)

    def is_connected(self) -> bool:
        """Whether init can be reached; code may have closed that descriptor, so that no snapshot
        can be activated.
        """
        try:
            return not _get_inheritable(self._orders)
        except OSError:
            return False

    def make(self, *, rests: bool = False) -> Woken | None:
        """Fork a waiting snapshot. Returns None at once here, and a value in the activated
        snapshot.

        With `rests` it may return here when the host has sent something: going on in Python first
        writes to a hundred pages, which are then in memory twice.

        A failure is never fatal: the state before stays the one to return to.
        """
        self.due = False
        if self._settling:  # not done yet after a cell that had no code to run
            self.settle()
        threads = has_threads()
        lacks = lost_resources.look(self._own(), threads=threads)
        if not self._fits(lacks):
            return None
        snapshot_fork = None if threads or lacks.descriptors else self._snapshot_fork()
        # Before the snapshot counts: no state may be restored without its files.
        if lacks.descriptors:
            shared_mappings.touch(self._workspace, lacks.descriptors)
        if self._files.changed(self.states.files):
            self._socket.sendall(WORD.pack(KEEP, self.cell))
            self._socket.recv(len(KEPT))
        before = _sigmask(_BLOCK, ALL_SIGNALS if snapshot_fork else HELD_SIGNALS)
        rest = self._rest(before) if rests and snapshot_fork else None
        self._hold_garbage()
        try:
            pid = (
                snapshot_fork(self._worker, rest) if snapshot_fork else self._fork(threads=threads)
            )
        except OSError:
            pid = -1
        if pid == 0:
            return self._woken(lacks, before, waits=snapshot_fork is None)
        self._release_garbage()
        _sigmask(_SETMASK, before)
        if pid > 0:
            if rest is None:
                self._keep(pid)
            else:
                self._rows = self._rows_with(pid)
            self._settling = pid
        return None

    def _fits(self, lacks: LostResources) -> bool:
        """Whether a snapshot could take over with all its losses; if not, init is told."""
        fits = True
        if lacks.descriptors or self._reserved:
            limit = _getrlimit(_NOFILE)
            fits = lacks.fits(limit[0], self._most_files(limit), len(self._reserved))
        if fits == self.states.crowded:
            self.states.crowded = not fits
        return fits

    def _woken(self, lacks: LostResources, before: set[int], *, waits: bool = False) -> Woken:
        """In the snapshot; one that `waits` has not been activated yet."""
        try:
            if waits:
                self._wait(lacks)
            return self._take_over(lacks, before)
        # Boundary: a failing snapshot must not become a second worker.
        except BaseException:  # noqa: BLE001
            os._exit(1)

    def rehearse(self, own: Collection[int]) -> None:
        """Run everything of `make` but the fork itself; `own`: all open descriptors."""
        self._own()
        lost_resources.look(own, threads=has_threads())
        self._files.changed(self.states.files)
        if (snapshot_fork := self._snapshot_fork()) is not None:
            snapshot_fork.prepare(self._worker, self._rest(_sigmask(_BLOCK, ())))
        self._rows = []

    def rehearse_waking(self) -> Woken:
        """Run everything of an activation, by a command to this process that has been sent."""
        return self._take_over(LostResources([]), _sigmask(_BLOCK, ()))

    def close(self) -> None:
        """Close the connections to init."""
        self._socket.close()

    def _own(self) -> tuple[int, ...]:
        """The descriptors of the worker, and not of the session."""
        if self._reserved:  # but where the code has closed a placeholder
            self._reserved = placeholder_descriptors.placed(self._reserved)
        return (0, 1, 2, self._worker, self._orders, *self._reserved)

    def _snapshot_fork(self) -> SnapshotFork | None:
        """The function that makes a snapshot that waits as in `_wait`, if it can."""
        # It closes all from the worker's socket on.
        return self._recovery.snapshot_fork if self._orders < self._worker else None

    def _last(self) -> int:
        """The snapshot that is obsolete when there is another, 0 for none."""
        rows = self._rows
        if rows and rows[-1][1] == self.cell:  # before the host set a variable
            return rows[-1][0]
        return rows[0][0] if len(rows) > self._recovery.kept else 0

    def _fork(self, *, threads: bool) -> int:
        recovery = self._recovery
        return recovery.fork_beside_threads() if threads else recovery.fork_beside()

    def settle(self) -> None:
        """Wait until code cannot notice the last snapshot: in its process group, or by a pipe.

        As late as possible, because the snapshot runs on another processor meanwhile.
        """
        copy = self._settling
        if copy:
            self._settling = 0
            deadline = _thread_time() + SETTLING
            try:
                while _getpgid(copy) != copy and _thread_time() < deadline:
                    _sched_yield()
            except OSError:
                pass  # it has died

    def _rest(self, blocked: Collection[int]) -> SnapshotLeftover:
        """Return the rest of `_keep` for the coming snapshot: its row in the table, and a wait."""
        states = self.states
        child, half = states.lay(self._rows_with(0))
        mask = sum(1 << (number - 1) for number in blocked) if blocked else 0
        return SnapshotLeftover(self._worker, child, (states.address, half), self._last(), mask)

    def _rows_with(self, copy: int) -> list[Row]:
        """The table with a snapshot of this state, and without the obsolete one."""
        ended, rows = self._last(), [*self._rows, (copy, self.cell)]
        if ended:  # the first, or the last
            del rows[0 if rows[0][0] == ended else -2]
        return rows

    def _keep(self, copy: int) -> None:
        ended, self._rows = self._last(), self._rows_with(copy)
        self.states.write(self._rows)
        if ended:
            try:
                _kill(ended, _SIGKILL)
            except OSError:
                pass  # the session's code was first

    def _wait(self, lacks: LostResources) -> None:
        """In the snapshot: close everything that is not its own, then wait to be activated."""
        _sigmask(_BLOCK, ALL_SIGNALS)
        with suppress(OSError):  # closed already, where fork hooks have run
            _close(self._worker)  # the host must see end of file when the worker has closed it
        if lacks.descriptors:
            lacks.let_go()
        # Leave the worker's process group, which its code may kill, but not its session, by which
        # init assigns the snapshot before the table lists it. Last, because the worker recognises
        # by it that the snapshot is done.
        _setpgid(0, 0)
        _sigwait(_WAKES)

    def _take_over(self, lacks: LostResources, before: set[int]) -> Woken:
        """In the activated snapshot: follow init's command."""
        self._begin_takeover()
        with suppress(OSError):
            _close(self._worker)  # where a snapshot fork could not
        while (order := read_order(self._socket, _getpid(), wait=True)) is None:
            pass  # it was for one that died before it could read
        # The snapshots that still wait, as init has left the table.
        return self._as_worker(order, lacks, before, self.states.read())

    def _hold_garbage(self) -> None:
        """Disable garbage collection in a snapshot until its restoration is complete.

        A collection may run code, and close lost descriptors, whose numbers the worker's own may
        have.
        """
        self._collects = self._collects or _is_collecting()
        _stop_collecting()

    def _release_garbage(self) -> None:
        if self._collects:
            self._collects = False
            _collect()

    def _begin_takeover(self) -> None:
        """Raise the limit of descriptors above the code's, and disable garbage collection."""
        self._hold_garbage()
        self._files_limit = _getrlimit(_NOFILE)
        _setrlimit(_NOFILE, (self._most_files(self._files_limit), self._files_limit[1]))

    def _most_files(self, limit: tuple[int, int]) -> int:
        soft, hard = limit
        most = soft + self._recovery.spare_files
        return most if hard == _UNLIMITED else min(most, hard)

    def _as_worker(
        self, order: SnapshotCommand, lacks: LostResources, before: set[int], rows: list[Row]
    ) -> Woken:
        """Be the worker of the session, or of a branch, that has the snapshots `rows`."""
        while _signal.sigtimedwait(ALL_SIGNALS, 0) is not None:
            pass  # signals that the code has sent it, such as another WAKE_SIGNAL
        _sigmask(_SETMASK, before)
        self._rows = rows
        # Numbers that are opened again there, or kept.
        taken = {*self._reserved, *(held.fd for held in lacks.descriptors)}
        self._sit_down(order.descriptors[0], taken)
        moved = (self._workspace, order.workspace) if order.workspace else None
        if moved:
            self._workspace, self._files = order.workspace, FileChanges(order.workspace)
        seed = None if order.seed < 0 else order.seed
        return Woken(self._worker, self.cell, lacks, order.cpu_left, moved, seed)

    def _sit_down(self, worker: int, taken: Collection[int]) -> None:
        """Move both sockets to the highest possible numbers, the worker's above."""
        most, orders = _sysconf("SC_OPEN_MAX"), self._orders
        self._socket.detach()
        self._worker = _at_most(worker, most, {*taken, orders})
        self._orders = _at_most(orders, self._worker, taken)
        # As made in C: `socket` wraps it in Python, which writes to more pages.
        self._socket = _socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, self._orders)


def _at_most(fd: int, below: int, taken: Collection[int]) -> int:
    """Move `fd` to the highest number below `below` that is not among `taken`."""
    for number in range(below - 1, fd if fd < below else _STDERR, -1):
        if number not in taken:
            try:
                _dup2(fd, number, inheritable=False)
            except OSError:
                continue
            _close(fd)
            return number
    return fd


def has_threads() -> bool:
    """Whether this process has other threads, including those of C libraries, as far as known."""
    try:
        return _thread_count() > 0 or os.stat("/proc/self/task").st_nlink - 2 > 1
    except OSError:
        return False
