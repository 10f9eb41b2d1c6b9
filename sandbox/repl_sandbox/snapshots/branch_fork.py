"""`BranchFork`: forks of a worker that become branches, each with a session's links of its own.

The worker forks after it has answered that it expects a command; by then it has a snapshot. Init's
command describes the branch.

The first actions after a fork are slow, because each page that they write to is copied. So the
worker does as much as it can for its branch: it reads the command, copies the files, and writes the
branch's first message, which then precedes the rest of the branch's work. The branch does
everything before its first message if only the branch can tell what it lacks, if the files are many
or large, or if the worker has no numbers for the descriptors of the command.
"""

from __future__ import annotations

import _signal
import os
import select
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from ..protocol.messages import VERSION, Ready, Restored, encode
from ..protocol.snapshot_signals import HELD_SIGNALS
from . import lost_resources, shared_mappings
from .lost_resources import LostResources
from .snapshot_messages import BRANCHED, WORKER_MESSAGE, SnapshotCommand
from .snapshot_messages import read as read_command
from .snapshot_processes import ALL_SIGNALS, DETACH_SECONDS, SnapshotProcesses, has_threads
from .snapshot_resources import Takeover
from .workspace import workspace_copy

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
    """The threads, the losses of a snapshot made now, and the shared memory of the worker."""

    threads: bool
    lost: LostResources
    shared: list[str]


class _Prepared(NamedTuple):
    """The worker's preparations for its branch: init's command, and the branch's first message."""

    command: SnapshotCommand
    message: bytes


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
        return replace(takeover, shared=found.shared, announced=prepared is not None)

    def _inspect(self) -> _Inspection | None:
        """Return None if the code has replaced an object that this needs."""
        try:
            threads = has_threads()
            lost = lost_resources.find(self._own(), threads=threads)
            # A branch has files of its own, but mapped files are those of this process.
            return _Inspection(threads, lost, shared_mappings.lost((self.table.address,)))
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
        # Init waits until there is a branch, and handles no other input; it may have to end other
        # branches.
        if lost is None or not workspace_copy.is_little(self._workspace):
            return None
        command = read_command(self._sockets.init_socket, forker, wait=False)
        if command is None:
            raise ValueError("the command is for another process")
        try:
            not_copied = workspace_copy.copy(self._workspace, command.workspace)
            restored = Restored(self.cell, (*not_copied, *lost, *found.shared))
            return _Prepared(command, encode(Ready(VERSION)) + encode(restored))
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
        reported = False
        self._guards.begin()
        try:
            # Leave the worker's process group, which its code may kill, before others know of this
            # process.
            _setsid()
            command = self._read_command(forker, lost) if prepared is None else prepared.command
            # By this process: after the report the next command may come, for another branch.
            self._sockets.init_socket.sendall(WORKER_MESSAGE.pack(BRANCHED, _getpid()))
            if prepared is not None:
                os.write(command.descriptors[0], prepared.message)
            reported = True
            return self._replace_descriptors(command, lost, before)
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
            EOFError, OSError, ValueError: as of `snapshot_messages.read`, or it is for another
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
