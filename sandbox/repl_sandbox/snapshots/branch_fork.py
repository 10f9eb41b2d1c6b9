"""Branches of a worker: forks of it that go on beside it, each with a session's links of its own.

The worker forks when it has answered that it may be ordered to, and is copied by then. What is to
be is in init's order.

What a fork does first takes it long, for each page that it writes to is copied. So the worker does
for its branch what it can: it reads the order, copies the files, and lays out what the branch is to
say, which then says it and sees to the rest while others go on. Where only the branch can tell what
it lacks, the files are many or large, or the worker has no numbers for the descriptors that come
with the order, the branch does all of it before it speaks.
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

# Asked for as a variable, which cannot have this name, it makes a worker that has answered wait for
# init's order to fork a branch.
ASK_FOR_BRANCH = " "

_HANDLED = tuple(
    set(ALL_SIGNALS).difference(HELD_SIGNALS)
)  # a worker that blocked those would count as a copy
_BLOCK, _SETMASK = _signal.SIG_BLOCK, _signal.SIG_SETMASK
_sigmask = _signal.pthread_sigmask
_close, _getpid, _getppid, _setsid = os.close, os.getpid, os.getppid, os.setsid
_dup2, _sysconf = os.dup2, os.sysconf
_sched_yield, _thread_time = os.sched_yield, time.thread_time
# Of orders that nobody took.
_READ, _MOST_READS = 4096, 1000
# A worker that may have so many descriptors has numbers for those of a branch, beside its own.
_ENOUGH = 32


class _Forker(NamedTuple):
    """Who forks a branch, and its parent, which is init."""

    pid: int
    parent: int


class _Look(NamedTuple):
    """Whether there are other threads; what a copy made now would lack; what it would share."""

    threads: bool
    lacks: LostResources
    shared: list[str]


class _Ahead(NamedTuple):
    """What the worker has done for its branch: the order that it has read, what is to be said."""

    order: SnapshotCommand
    said: bytes


# What a copy made now will say that it lacks, as of `LostResources.foresee`.
Foresee = Callable[[LostResources], list[str] | None]


class BranchFork(SnapshotProcesses):
    """The copies of one worker, and its branches."""

    def branch(
        self,
        answer: Callable[[], None],
        complain: Callable[[BaseException], None],
        foresee: Foresee,
    ) -> Woken | None:
        """Fork a branch, if init orders it before the host says anything; in that what it is to do.

        `answer` tells the host that from now on there may be an order; `complain` takes what
        handlers of the code's raise meanwhile. Returns None here. The state is that of now, of
        which there is a copy already.
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
                # As for a copy: hooks of the code's run, and so may its handlers.
                _sigmask(_SETMASK, before)
                looked = self._look()
            _sigmask(_BLOCK, HELD_SIGNALS)
            if looked is not None and self._fits(looked.lacks):
                pid, ahead = self._forked(forker.pid, looked, foresee)
            if pid < 0:
                self._forget_orders()
                with suppress(OSError):  # the code has shut it
                    self._socket.sendall(WORD.pack(BRANCHED, -1))
        finally:
            if pid:
                _sigmask(_SETMASK, before)
        if pid or looked is None:
            return None
        woken = self._begin_branch(forker, looked.lacks, before, ahead)
        return replace(woken, shared=looked.shared, said=ahead is not None)

    def _look(self) -> _Look | None:
        """None if the code has put something in the place of what tells that."""
        try:
            threads = has_threads()
            lacks = lost_resources.look(self._own(), threads=threads)
            # A branch has files of its own, but what it has mapped are those of this process.
            return _Look(threads, lacks, shared_mappings.lost((self.states.address,)))
        # Boundary: as in `Snapshots.make`.
        except Exception:  # noqa: BLE001
            return None

    def _forked(self, forker: int, looked: _Look, foresee: Foresee) -> tuple[int, _Ahead | None]:
        """As of fork(2), -1 if there is no branch; with what was done for it."""
        pid, ahead = -1, None
        try:
            ahead = self._ahead(forker, looked, foresee)
            pid = self._fork(threads=looked.threads)
        # Boundary: handlers of the code's may run there, and raise what they like.
        except BaseException:  # noqa: BLE001
            if _getpid() != forker:
                os._exit(1)  # there must be no second worker
        finally:
            if pid and ahead is not None:
                ahead.order.close()
        return pid, ahead

    def _ahead(self, forker: int, looked: _Look, foresee: Foresee) -> _Ahead | None:
        """Do for a branch what it need not do itself; None where it has to.

        Raises:
            EOFError, MemoryError, OSError, ValueError: the order cannot be read or followed.
        """
        if looked.threads or _sysconf("SC_OPEN_MAX") < _ENOUGH:
            return None
        lost = foresee(looked.lacks)
        # Init waits until there is a branch, and hears nobody; other lines may have to be ended.
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
        """Read what nobody has: who asks for a branch now means another."""
        with suppress(OSError):
            for _ in range(_MOST_READS):  # who goes on filling it does not keep the worker at it
                if not self._socket.recv(_READ, socket.MSG_DONTWAIT):
                    break

    def _is_ordered(self, before: set[int], complain: Callable[[BaseException], None]) -> bool:
        """Wait for an order of init's, or for the host to say something; whether it was the one.

        However long that is, handlers run as ever.
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
            # Boundary: as where a worker waits for what the host wants next.
            except BaseException as error:  # noqa: BLE001
                complain(error)

    def _begin_branch(
        self, forker: _Forker, lacks: LostResources, before: set[int], ahead: _Ahead | None
    ) -> Woken:
        """In a branch that was forked just now: have nothing that is the worker's."""
        said = False
        self._begin_takeover()
        try:
            # Out of reach of what the worker's code ends, before anybody hears of this process.
            _setsid()
            order = self._ordered(forker, lacks) if ahead is None else ahead.order
            # By this process: whoever is told of it may ask for the next, whose order is not ours.
            self._socket.sendall(WORD.pack(BRANCHED, _getpid()))
            if ahead is not None:
                os.write(order.descriptors[0], ahead.said)
            said = True
            with suppress(OSError):  # closed already, where hooks of a fork have run
                _close(self._worker)
            worker, orders, states, stdout, stderr = order.descriptors
            _dup2(stdout, 1)
            _dup2(stderr, 2)
            self.states.be(states)
            for fd in (self._socket.detach(), states, stdout, stderr):
                _close(fd)
            self._orders = orders
            return self._as_worker(order._replace(descriptors=[worker]), lacks, before, [])
        # Boundary: a branch that fails must not become a second worker.
        except BaseException:  # noqa: BLE001
            if not said:
                with suppress(OSError):
                    self._socket.sendall(WORD.pack(BRANCHED, -1))
            os._exit(1)

    def _ordered(self, forker: _Forker, lacks: LostResources) -> SnapshotCommand:
        """In a branch that was forked before its order was read: read it, as a child of init's.

        Raises:
            EOFError, OSError, ValueError: as of `orders.read`, or it is for another process.
        """
        _sigmask(_BLOCK, ALL_SIGNALS)
        with suppress(OSError):  # closed already, where hooks of a fork have run
            _close(self._worker)
        if lacks.descriptors:  # first, for what comes with the order needs numbers
            lacks.let_go()
        order = read_order(self._socket, forker.pid, wait=False)
        if order is None:
            raise ValueError("an order for another process")
        # Until who was between the two has ended, of a process with threads. Else init would
        # not take this for a process of its own.
        deadline = _thread_time() + SETTLING
        while _getppid() != forker.parent and _thread_time() < deadline:
            _sched_yield()
        return order
