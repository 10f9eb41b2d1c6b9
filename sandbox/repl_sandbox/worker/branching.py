"""Branches of a worker: forks of it that go on beside it, each with a session's links of its own.

The worker forks when it has answered that it may be ordered to, and is copied by then. What it is
to be is in init's order, which the branch reads itself: what comes with that needs descriptors, of
which the worker may have none left.
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

from . import mappings, remains
from .copies import ALL_SIGNALS, HELD, SETTLING, Copies, Woken, has_threads
from .orders import BRANCHED, WORD
from .orders import read as read_order
from .remains import Remains

# Asked for as a variable, which cannot have this name, it makes a worker that has answered wait for
# init's order to fork a branch.
ASK_FOR_BRANCH = " "

_HANDLED = tuple(
    set(ALL_SIGNALS).difference(HELD)
)  # a worker that blocked those would count as a copy
_BLOCK, _SETMASK = _signal.SIG_BLOCK, _signal.SIG_SETMASK
_sigmask = _signal.pthread_sigmask
_close, _getpid, _getppid, _setsid = os.close, os.getpid, os.getppid, os.setsid
_sched_yield, _thread_time = os.sched_yield, time.thread_time
# Of orders that nobody took.
_READ, _MOST_READS = 4096, 1000


class _Forker(NamedTuple):
    """Who forks a branch, and its parent, which is init."""

    pid: int
    parent: int


class Branching(Copies):
    """The copies of one worker, and its branches."""

    def branch(
        self, answer: Callable[[], None], complain: Callable[[BaseException], None]
    ) -> Woken | None:
        """Fork a branch, if init orders it before the host says anything; in that what it is to do.

        `answer` tells the host that from now on there may be an order; `complain` takes what
        handlers of the code's raise meanwhile. Returns None here. The state is that of now, of
        which there is a copy already.
        """
        before, forker, pid = _sigmask(_BLOCK, _HANDLED), _Forker(_getpid(), _getppid()), -1
        try:
            self._forget_orders()
            answer()
            looked = self._look()
            if not self._is_ordered(before, complain):
                return None
            if looked is not None and looked[0]:
                # As for a copy: hooks of the code's run, and so may its handlers.
                _sigmask(_SETMASK, before)
                looked = self._look()
            _sigmask(_BLOCK, HELD)
            if looked is not None:
                pid = self._forked(forker.pid, threads=looked[0])
            if pid < 0:
                self._forget_orders()
                with suppress(OSError):  # the code has shut it
                    self._socket.sendall(WORD.pack(BRANCHED, -1))
        finally:
            if pid:
                _sigmask(_SETMASK, before)
        if pid or looked is None:
            return None
        _, lacks, shared = looked
        return replace(self._begin_branch(forker, lacks, before), shared=shared)

    def _look(self) -> tuple[bool, Remains, list[str]] | None:
        """Whether there are other threads; what a copy made now would lack; and the memory that it
        would share. None if the code has put something in the place of what tells that.
        """
        try:
            threads = has_threads()
            lacks = remains.look(self._own(), threads=threads)
            # A branch has files of its own, but what it has mapped are those of this process.
            renewal = self._recovery.renewal
            ours = (self.states.address, *(() if renewal is None else renewal.mapped))
            return threads, lacks, mappings.lost(ours)
        # Boundary: as in `Worker._copy`.
        except Exception:  # noqa: BLE001
            return None

    def _forked(self, forker: int, *, threads: bool) -> int:
        try:
            return self._fork(threads=threads)
        # Boundary: handlers of the code's may run there, and raise what they like.
        except BaseException:  # noqa: BLE001
            if _getpid() != forker:
                os._exit(1)  # there must be no second worker
            return -1

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

    def begin(self) -> None:
        """In a branch that has spoken: let go of what the worker's copies were made with."""
        if self._recovery.renewal is not None:
            self._recovery.renewal.end()

    def _begin_branch(self, forker: _Forker, lacks: Remains, before: set[int]) -> Woken:
        """In a branch that was forked just now: have nothing that is the worker's."""
        said = False
        try:
            _sigmask(_BLOCK, ALL_SIGNALS)
            _setsid()
            with suppress(OSError):  # closed already, where hooks of a fork have run
                _close(self._worker)
            if lacks.descriptors:  # first, for what comes with the order needs numbers
                lacks.let_go(os.sysconf("SC_OPEN_MAX"))
            order = read_order(self._socket, forker.pid, wait=False)
            if order is None:
                raise ValueError("an order for another process")
            # Until who was between the two has ended, of a process with threads. Else init would
            # not take this for a process of its own.
            deadline = _thread_time() + SETTLING
            while _getppid() != forker.parent and _thread_time() < deadline:
                _sched_yield()
            worker, orders, states, stdout, stderr = order.descriptors
            # By this process: whoever is told of it may ask for the next, whose order is not ours.
            self._socket.sendall(WORD.pack(BRANCHED, _getpid()))
            said = True
            os.dup2(stdout, 1)
            os.dup2(stderr, 2)
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
