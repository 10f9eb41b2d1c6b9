"""Branches of a session: forks of its worker, each with links of its own, and their messages."""

from __future__ import annotations

import _signal
import _thread
import os
import resource
import select
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from ..protocol.control import BRANCHED, HELD_SIGNALS, WORKER_MESSAGE, SnapshotCommand, read_command
from ..protocol.messages import VERSION, Ready, Restored, encode
from . import lost_resources, shared_mappings, variables
from .cell_runner import CellRunner, SessionState, WorkerProcess
from .channel import WorkerChannel
from .hints import move_files_to
from .host_stubs import HostCallClient
from .imports import MODULES
from .lost_resources import LostResources
from .namespace import Namespace
from .shared_mappings import SharedMapping
from .snapshots import (
    ALL_SIGNALS,
    DETACH_SECONDS,
    Protect,
    SnapshotProcesses,
    Takeover,
    has_threads,
)
from .variables import seed

# `BranchFork`: forks of a worker that become branches, each with a session's links of its own.
#
# The worker forks after it has answered that it expects a command; by then it has a snapshot.
# Init's command describes the branch.
#
# The first actions after a fork are slow, because each page that they write to is copied. So the
# worker does as much as it can for its branch: it reads the command, copies the files, and writes
# the branch's first message, which then precedes the rest of the branch's work. The branch does
# everything before its first message if only the branch can tell what it lacks, if the files are
# many or large, or if the worker has no numbers for the descriptors of the command.

# Requested as a variable, which cannot have this name, it makes a worker that has answered wait for
# init's command to fork a branch.
ASK_FOR_BRANCH = " "

_HANDLED = tuple(
    set(ALL_SIGNALS).difference(HELD_SIGNALS)
)  # a worker that blocked those would count as a snapshot
_BLOCK, _SETMASK = _signal.SIG_BLOCK, _signal.SIG_SETMASK
_sigmask = _signal.pthread_sigmask
_close, _getpid, _getppid, _setsid = os.close, os.getpid, os.getppid, os.setsid
_dup2, _sysconf = os.dup2, os.sysconf
_sched_yield, _thread_time = os.sched_yield, time.thread_time
# Of commands that no process read.
_READ, _MAX_READS = 4096, 1000
# Descriptors of a worker that has numbers for those of a branch, besides its own.
_ENOUGH = 32


class _Forker(NamedTuple):
    """The forking process, and its parent, which is init."""

    pid: int
    parent: int


class _Inspection(NamedTuple):
    """The threads, the losses of a snapshot made now, and the shared memory of the worker, None if
    it is not known.
    """

    threads: bool
    lost: LostResources
    mappings: list[SharedMapping] | None


class _Prepared(NamedTuple):
    """The worker's preparations for its branch: init's command, the names of what the branch will
    lack, its first message, and its protection of other branches' files.
    """

    command: SnapshotCommand
    not_copied: list[str]
    message: bytes
    protect: Protect


# The losses of a snapshot made now, as of `LostResources.predict`.
Predict = Callable[[LostResources], list[str] | None]


class BranchFork(SnapshotProcesses):
    """The snapshots of one worker, and its branches."""

    def branch(
        self,
        answer: Callable[[], None],
        complain: Callable[[BaseException], None],
        predict: Predict,
    ) -> Takeover | None:
        """Fork a branch, if init commands it before the host sends anything; return its takeover in
        it.

        `answer` tells the host that there may be a command from now on; `complain` takes the
        exceptions of the code's signal handlers meanwhile. Returns None in the worker. The state is
        the current one, which has a snapshot already.
        """
        before, forker, pid = _sigmask(_BLOCK, _HANDLED), _Forker(_getpid(), _getppid()), -1
        prepared: _Prepared | None = None
        try:
            self._discard_commands()
            answer()
            found = self._inspect()
            if not self._is_commanded(before, complain):
                return None
            if found is not None and found.threads:
                # As for a snapshot: the code's fork hooks run, and so may its signal handlers.
                _sigmask(_SETMASK, before)
                found = self._inspect()
            _sigmask(_BLOCK, HELD_SIGNALS)
            if found is not None and self._fits(found.lost):
                pid, prepared = self._fork_branch(forker.pid, found, predict)
            if pid < 0:
                self._discard_commands()
                self._report(-1)
        finally:
            if pid:
                _sigmask(_SETMASK, before)
        if pid or found is None:
            return None
        takeover = self._begin_branch(forker, found.lost, before, prepared)
        return replace(takeover, mappings=found.mappings)

    def _inspect(self) -> _Inspection | None:
        """Return None if the code has replaced an object that this needs."""
        try:
            threads = has_threads()
            lost = lost_resources.find(self._own(), threads=threads)
            # The branch has the same, and in some tiers cannot see them.
            mappings = shared_mappings.find((self.table.address,), writable=False)
            return _Inspection(threads, lost, mappings)
        # Boundary: as in `SnapshotProcesses.make`.
        except Exception:  # noqa: BLE001
            return None

    def _fork_branch(
        self, forker: int, found: _Inspection, predict: Predict
    ) -> tuple[int, _Prepared | None]:
        """As of fork(2), -1 if there is no branch; with the preparations."""
        pid, prepared = -1, None
        try:
            prepared = self._prepare(forker, found, predict)
            pid = self._fork(threads=found.threads)
        # Boundary: signal handlers of the code may run there, and raise anything.
        except BaseException:  # noqa: BLE001
            if _getpid() != forker:
                os._exit(1)  # there must be no second worker
        finally:
            if pid and prepared is not None:
                prepared.command.close()
        return pid, prepared

    def _prepare(self, forker: int, found: _Inspection, predict: Predict) -> _Prepared | None:
        """Prepare a branch; return None if it has to do everything itself.

        Raises:
            EOFError, MemoryError, OSError, ValueError: the command cannot be read or followed.
        """
        if found.threads or _sysconf("SC_OPEN_MAX") < _ENOUGH:
            return None
        lost = predict(found.lost)
        here = self._directories_in("")
        # Init waits until there is a branch, and handles no other input; it may have to end other
        # branches.
        if lost is None or found.mappings is None or not here.is_little():
            return None
        if any(map(here.is_to_copy, found.mappings)):
            return None
        command = read_command(self._sockets.init_socket, forker, wait=False)
        if command is None:
            raise ValueError("the command is for another process")
        try:
            not_copied = self._directories_in(command.folder).copy()
            restored = Restored(self.cell, (*not_copied, *lost))
            message = encode(Ready(VERSION)) + encode(restored)
            protect = self._resources.protection(command.folder)
            return _Prepared(command, not_copied, message, protect)
        except BaseException:
            command.close()
            raise

    def _discard_commands(self) -> None:
        """Read commands that no process has read: the next one is for another branch."""
        with suppress(OSError):
            for _ in range(_MAX_READS):  # code that goes on filling it cannot keep the worker busy
                if not self._sockets.init_socket.recv(_READ, socket.MSG_DONTWAIT):
                    break

    def _report(self, pid: int) -> None:
        """Tell init which process is the branch, -1 for none."""
        with suppress(OSError):  # the code has shut it down
            self._sockets.init_socket.sendall(WORKER_MESSAGE.pack(BRANCHED, pid))

    def _is_commanded(self, before: set[int], complain: Callable[[BaseException], None]) -> bool:
        """Wait for init's command, or for a message of the host; return whether it was the command.

        Signal handlers run as ever meanwhile.
        """
        waiting, init = select.poll(), self._sockets.init
        for fd in (init, self._sockets.host):
            waiting.register(fd, select.POLLIN)
        while True:
            try:
                _sigmask(_SETMASK, before)
                ready = waiting.poll()
                _sigmask(_BLOCK, _HANDLED)
                return any(fd == init for fd, _ in ready)
            # Boundary: as where a worker waits for the host's next message.
            except BaseException as error:  # noqa: BLE001
                complain(error)

    def _begin_branch(
        self, forker: _Forker, lost: LostResources, before: set[int], prepared: _Prepared | None
    ) -> Takeover:
        """In a branch that was just forked: release everything that is the worker's."""
        reported = announced = False
        self._guards.begin()
        try:
            # Leave the worker's process group, which its code may kill, before others know of this
            # process.
            _setsid()
            if prepared is None:
                command = self._read_command(forker, lost)
                losses = self._resources.protection(command.folder)()
            else:
                command, losses = prepared.command, prepared.protect()
            # By this process: after the report the next command may come, for another branch.
            self._sockets.init_socket.sendall(WORKER_MESSAGE.pack(BRANCHED, _getpid()))
            if prepared is not None and not losses:
                os.write(command.descriptors[0], prepared.message)
                announced = True
            reported = True
            takeover = self._replace_descriptors(command, lost, before)
            if prepared is None:
                assert takeover.directories is not None
                losses += takeover.directories.copy()
            else:
                losses += prepared.not_copied
            return replace(takeover, losses=losses, announced=announced)
        # Boundary: a failing branch must not become a second worker.
        except BaseException:  # noqa: BLE001
            if not reported:
                self._report(-1)
            os._exit(1)

    def _replace_descriptors(
        self, command: SnapshotCommand, lost: LostResources, before: set[int]
    ) -> Takeover:
        """Use the descriptors of the command in place of the worker's."""
        with suppress(OSError):  # closed already, where fork hooks have run
            _close(self._sockets.host)
        worker, init, table, stdout, stderr = command.descriptors
        _dup2(stdout, 1)
        _dup2(stderr, 2)
        self.table.use_page(table)
        self._sockets.replace_init(init)
        for fd in (table, stdout, stderr):
            _close(fd)
        return self._become_worker(command._replace(descriptors=[worker]), lost, before, [])

    def _read_command(self, forker: _Forker, lost: LostResources) -> SnapshotCommand:
        """In a branch that was forked before its command was read: read it, as a child of init's.

        Raises:
            EOFError, OSError, ValueError: as of `control.read_command`, or it is for another
                process.
        """
        _sigmask(_BLOCK, ALL_SIGNALS)
        with suppress(OSError):  # closed already, where fork hooks have run
            _close(self._sockets.host)
        if lost.descriptors:  # first, because the descriptors of the command need numbers
            lost.release()
        command = read_command(self._sockets.init_socket, forker.pid, wait=False)
        if command is None:
            raise ValueError("the command is for another process")
        # Until the intermediate process of a process with threads has ended. Otherwise init would
        # not recognise this process as its child.
        deadline = _thread_time() + DETACH_SECONDS
        while _getppid() != forker.parent and _thread_time() < deadline:
            _sched_yield()
        return command


# `SnapshotControl`: decides when a worker forks snapshots, and runs take-overs and branches.

_exit, _write = os._exit, os.write
_setrlimit, _CPU = resource.setrlimit, resource.RLIMIT_CPU
_thread_count = _thread._count  # as the tests of threading use it

# Milliseconds without a fork after a worker's answer: a session that is closed by then, as sessions
# of one cell are, is spared the snapshot.
_IDLE_WAIT = 1
# Milliseconds without a command after which a session counts as idle, though its cells came fast.
_REST = 100
# The same before any code of the session has run. Its state comes from the host, the session may
# never be used, and a model thinks for longer. A cell that arrives sooner waits for its snapshot.
_IDLE_WAIT_UNUSED = 1000


class SnapshotControl:
    """Snapshots and branches of one worker, as far as the host takes part."""

    __slots__ = ("_calls", "_cells", "_channel", "_namespace", "_process", "_session")

    def __init__(
        self,
        session: SessionState,
        process: WorkerProcess,
        channel: WorkerChannel,
        calls: HostCallClient,
        namespace: Namespace,
        cells: CellRunner,
    ) -> None:
        self._session, self._process = session, process
        self._channel, self._calls = channel, calls
        self._namespace, self._cells = namespace, cells

    def make(self, snapshots: BranchFork) -> None:
        """Keep the state before a command changes it; in an activated snapshot, take over.

        Afterwards `snapshots.due` may be True again.
        """
        session, channel = self._session, self._channel
        waits_for_host = False
        if _thread_count() == 0:
            is_called = channel.has_input(_IDLE_WAIT if session.used else _IDLE_WAIT_UNUSED)
            waits_for_host = not is_called and not session.rapid
        try:
            takeover = snapshots.make(waits_for_host=waits_for_host)
        # Boundary: the session's code may have replaced anything used here. Without a snapshot the
        # session continues, and a rollback returns to the state before.
        except Exception as error:  # noqa: BLE001
            _write(2, f"no snapshot of the session was made: {type(error).__name__}\n".encode())
            return
        if takeover is not None:
            self._take_over(snapshots, takeover)
        # A host that lets the session rest does not notice that the next cell takes longer, because
        # pages that the worker shares with its snapshot are written for the first time.
        if session.rapid and not channel.has_input(0):
            self._cells.touch_pages()
            if _thread_count() == 0 and not channel.has_input(_REST):
                # Another snapshot, which shares all pages.
                session.rapid, snapshots.due = False, True

    def branch(self, snapshots: BranchFork) -> None:
        """Reply that `ASK_FOR_BRANCH` is unknown, and fork a branch if init commands it."""
        takeover = snapshots.branch(self._decline, complain, self._predict)
        if takeover is None:
            return
        try:
            self._take_over(snapshots, takeover)
        # Boundary: a half-made branch must never read from its host.
        except BaseException:  # noqa: BLE001
            _exit(1)
        # Many branches never get a command, and need no snapshot.
        self._channel.has_input(-1)

    def _decline(self) -> None:
        self._channel.send(variables.unknown_name(ASK_FOR_BRANCH))

    def _predict(self, lost: LostResources) -> list[str] | None:
        return lost.predict(self._namespace)

    def _take_over(self, snapshots: BranchFork, takeover: Takeover) -> None:
        """In a snapshot: become the session's worker, because the last one has ended."""
        if takeover.cpu_left:
            _setrlimit(_CPU, (takeover.cpu_left, takeover.cpu_left + 1))
        lost = list(takeover.losses or ())
        if takeover.directories is not None:
            takeover.directories.enter(with_files=bool(takeover.lost.descriptors))
            workspace, temporary = (
                takeover.directories.workspace[1],
                takeover.directories.temporary[1],
            )
            MODULES.move(workspace)
            move_files_to(workspace, temporary)
        lost += snapshots.restore_resources(takeover, self._namespace)
        self._channel.renew()
        if takeover.seed is not None:
            seed(takeover.seed)
        self._calls.forked = False
        self._calls.cell = 0
        self._process.begin()
        self._channel.open(takeover.worker)
        ready, restored = (
            self._channel.encoded(Ready(VERSION)),
            Restored(takeover.cell, tuple(lost)),
        )
        if takeover.announced:
            self._channel.encoded(restored)
        else:
            self._channel.send(restored, after=ready)
        # This process was its snapshot. Without another one, a cell that dies would also lose the
        # work of the cell before.
        snapshots.due = True

    # ── in a template, before any session ─────────────────────────────────────────────────────

    def warm_up_branch(self, snapshots: BranchFork) -> None:
        """Fork a branch for a pending command while forks fail (warm-up)."""
        snapshots.branch(_nothing, complain, self._predict)

    def warm_up_takeover(self, snapshots: BranchFork) -> None:
        """Take over by a pending command for `snapshots` (warm-up)."""
        self._take_over(snapshots, snapshots.warm_up_takeover())


def _nothing() -> None:
    """Discard a reply that has no host."""


def complain(error: BaseException) -> None:
    """Write an exception raised by session code between cells to the output of the next cell."""
    _write(2, f"between cells, a signal handler raised {type(error).__name__}\n".encode())
