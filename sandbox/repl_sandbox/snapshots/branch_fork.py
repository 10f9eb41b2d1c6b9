"""`BranchFork`: forks of a worker that become branches, each with a session's links of its own.

The worker forks after it has answered that it expects an order; by then it has a snapshot. Init's
order describes the branch.

The first actions after a fork are slow, because each page that they write to is copied. So the
worker does as much as it can for its branch: it reads the order, copies the files, and prepares the
branch's first message, which the branch then sends before it does the rest. If only the branch can
tell what it lacks, the files are many or large, or the worker has no numbers for the descriptors of
the order, the branch does everything before its first message.
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
from .snapshot_messages import BRANCHED, WORD, SnapshotCommand
from .snapshot_messages import read as read_order
from .snapshot_processes import ALL_SIGNALS, SETTLING, SnapshotProcesses, Woken, has_threads
from .workspace import workspace_copy

# Requested as a variable, which cannot have this name, it makes a worker that has answered wait for
# init's order to fork a branch.
ASK_FOR_BRANCH = " "

_HANDLED = tuple(
    set(ALL_SIGNALS).difference(HELD_SIGNALS)
)  # a worker that blocked those would count as a snapshot
_BLOCK, _SETMASK = _signal.SIG_BLOCK, _signal.SIG_SETMASK
_sigmask = _signal.pthread_sigmask
_close, _getpid, _getppid, _setsid = os.close, os.getpid, os.getppid, os.setsid
_dup2, _sysconf = os.dup2, os.sysconf
_sched_yield, _thread_time = os.sched_yield, time.thread_time
# Of orders that nobody read.
_READ, _MOST_READS = 4096, 1000
# A worker with so many descriptors has numbers for those of a branch, besides its own.
_ENOUGH = 32


class _Forker(NamedTuple):
    """The forking process, and its parent, which is init."""

    pid: int
    parent: int


class _Look(NamedTuple):
    """Whether there are other threads; the losses of a snapshot made now; shared memory."""

    threads: bool
    lacks: LostResources
    shared: list[str]


class _Ahead(NamedTuple):
    """The worker's preparations for its branch: the order that it has read, the branch's first
    message.
    """

    order: SnapshotCommand
    said: bytes


# The losses of a snapshot made now, as of `LostResources.foresee`.
Foresee = Callable[[LostResources], list[str] | None]


class BranchFork(SnapshotProcesses):
    """The snapshots of one worker, and its branches."""

    def branch(
        self,
        answer: Callable[[], None],
        complain: Callable[[BaseException], None],
        foresee: Foresee,
    ) -> Woken | None:
        """Fork a branch, if init orders it before the host sends anything; return its command in
        it.

        `answer` tells the host that there may be an order from now on; `complain` takes the
        exceptions of the code's signal handlers meanwhile. Returns None in the worker. The state is
        the current one, which has a snapshot already.
        """
        before, forker, pid = _sigmask(_BLOCK, _HANDLED), _Forker(_getpid(), _getppid()), -1
        ahead: _Ahead | None = None
        try:
            self._forget_orders()
            answer()
            looked = self._look()
            if not self._is_ordered(before, complain):
                return None
            if looked is not None and looked.threads:
                # As for a snapshot: the code's fork hooks run, and so may its signal handlers.
                _sigmask(_SETMASK, before)
                looked = self._look()
            _sigmask(_BLOCK, HELD_SIGNALS)
            if looked is not None and self._fits(looked.lacks):
                pid, ahead = self._forked(forker.pid, looked, foresee)
            if pid < 0:
                self._forget_orders()
                with suppress(OSError):  # the code has shut it down
                    self._socket.sendall(WORD.pack(BRANCHED, -1))
        finally:
            if pid:
                _sigmask(_SETMASK, before)
        if pid or looked is None:
            return None
        woken = self._begin_branch(forker, looked.lacks, before, ahead)
        return replace(woken, shared=looked.shared, said=ahead is not None)

    def _look(self) -> _Look | None:
        """Return None if the code has replaced an object that this needs."""
        try:
            threads = has_threads()
            lacks = lost_resources.look(self._own(), threads=threads)
            # A branch has files of its own, but mapped files are those of this process.
            return _Look(threads, lacks, shared_mappings.lost((self.states.address,)))
        # Boundary: as in `SnapshotProcesses.make`.
        except Exception:  # noqa: BLE001
            return None

    def _forked(self, forker: int, looked: _Look, foresee: Foresee) -> tuple[int, _Ahead | None]:
        """As of fork(2), -1 if there is no branch; with the preparations."""
        pid, ahead = -1, None
        try:
            ahead = self._ahead(forker, looked, foresee)
            pid = self._fork(threads=looked.threads)
        # Boundary: signal handlers of the code may run there, and raise anything.
        except BaseException:  # noqa: BLE001
            if _getpid() != forker:
                os._exit(1)  # there must be no second worker
        finally:
            if pid and ahead is not None:
                ahead.order.close()
        return pid, ahead

    def _ahead(self, forker: int, looked: _Look, foresee: Foresee) -> _Ahead | None:
        """Prepare a branch; return None where it has to do everything itself.

        Raises:
            EOFError, MemoryError, OSError, ValueError: the order cannot be read or followed.
        """
        if looked.threads or _sysconf("SC_OPEN_MAX") < _ENOUGH:
            return None
        lost = foresee(looked.lacks)
        # Init waits until there is a branch, and handles no other input; it may have to end other
        # branches.
        if lost is None or not workspace_copy.is_little(self._workspace):
            return None
        order = read_order(self._socket, forker, wait=False)
        if order is None:
            raise ValueError("an order for another process")
        try:
            lost = [*workspace_copy.copy(self._workspace, order.workspace), *lost, *looked.shared]
            return _Ahead(order, encode(Ready(VERSION)) + encode(Restored(self.cell, tuple(lost))))
        except BaseException:
            order.close()
            raise

    def _forget_orders(self) -> None:
        """Read orders without a reader: the next request for a branch is for another one."""
        with suppress(OSError):
            for _ in range(_MOST_READS):  # code that goes on filling it cannot keep the worker busy
                if not self._socket.recv(_READ, socket.MSG_DONTWAIT):
                    break

    def _is_ordered(self, before: set[int], complain: Callable[[BaseException], None]) -> bool:
        """Wait for an order of init's, or for a message of the host; return whether it was the
        order.

        Signal handlers run as ever meanwhile.
        """
        waiting = select.poll()
        for fd in (self._orders, self._worker):
            waiting.register(fd, select.POLLIN)
        while True:
            try:
                _sigmask(_SETMASK, before)
                ready = waiting.poll()
                _sigmask(_BLOCK, _HANDLED)
                return any(fd == self._orders for fd, _ in ready)
            # Boundary: as where a worker waits for the host's next message.
            except BaseException as error:  # noqa: BLE001
                complain(error)

    def _begin_branch(
        self, forker: _Forker, lacks: LostResources, before: set[int], ahead: _Ahead | None
    ) -> Woken:
        """In a branch that was just forked: release everything that is the worker's."""
        said = False
        self._begin_takeover()
        try:
            # Leave the worker's process group, which its code may kill, before others know of this
            # process.
            _setsid()
            order = self._ordered(forker, lacks) if ahead is None else ahead.order
            # By this process: after the report the next order may come, which is another branch's.
            self._socket.sendall(WORD.pack(BRANCHED, _getpid()))
            if ahead is not None:
                os.write(order.descriptors[0], ahead.said)
            said = True
            with suppress(OSError):  # closed already, where fork hooks have run
                _close(self._worker)
            worker, orders, states, stdout, stderr = order.descriptors
            _dup2(stdout, 1)
            _dup2(stderr, 2)
            self.states.be(states)
            for fd in (self._socket.detach(), states, stdout, stderr):
                _close(fd)
            self._orders = orders
            return self._as_worker(order._replace(descriptors=[worker]), lacks, before, [])
        # Boundary: a failing branch must not become a second worker.
        except BaseException:  # noqa: BLE001
            if not said:
                with suppress(OSError):
                    self._socket.sendall(WORD.pack(BRANCHED, -1))
            os._exit(1)

    def _ordered(self, forker: _Forker, lacks: LostResources) -> SnapshotCommand:
        """In a branch that was forked before its order was read: read it, as a child of init's.

        Raises:
            EOFError, OSError, ValueError: as of `snapshot_messages.read`, or it is for another
                process.
        """
        _sigmask(_BLOCK, ALL_SIGNALS)
        with suppress(OSError):  # closed already, where fork hooks have run
            _close(self._worker)
        if lacks.descriptors:  # first, because the descriptors of the order need numbers
            lacks.let_go()
        order = read_order(self._socket, forker.pid, wait=False)
        if order is None:
            raise ValueError("an order for another process")
        # Until the intermediate process of a process with threads has ended. Otherwise init would
        # not recognise this process as its child.
        deadline = _thread_time() + SETTLING
        while _getppid() != forker.parent and _thread_time() < deadline:
            _sched_yield()
        return order
