"""`SnapshotControl`: when a worker's copies are made, and what one does that takes over, or a
branch.
"""

from __future__ import annotations

import _thread
import os
import resource

from ..protocol.messages import VERSION, Ready, Restored
from ..snapshots.branch_fork import ASK_FOR_BRANCH, BranchFork
from ..snapshots.lost_resources import LostResources
from ..snapshots.snapshot_processes import Woken
from ..snapshots.workspace import workspace_copy
from .cell_runner import CellRunner
from .host_stubs.host_call_client import HostCallClient
from .namespace.main_namespace import Namespace
from .namespace.workspace_modules import MODULES
from .session_state import SessionState
from .variables import value_transfer
from .variables.random_seeding import seed
from .worker_channel import WorkerChannel
from .worker_process import WorkerProcess

_exit, _write = os._exit, os.write
_setrlimit, _CPU = resource.setrlimit, resource.RLIMIT_CPU
_thread_count = _thread._count  # as the tests of threading use it

# Milliseconds that a worker is left in peace after its answer, before it is copied: a session that
# is closed by then, as those of one cell are, is spared the copy.
_PEACE = 1
# After so many without a word the session rests, though its cells came in a hurry.
_REST = 100
# The same before any code of the session has run. What it has is from the host, it may never be
# used, and a model thinks for longer than this. A cell that comes sooner waits for its copy.
_PEACE_UNUSED = 1000


class SnapshotControl:
    """The copies of one worker, and its branches, as the host has to do with them."""

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

    def make(self, copies: BranchFork) -> None:
        """Have the state kept, before anything can change it; in a copy that is woken, take over.

        Then `copies.due` may be True again.
        """
        session, channel = self._session, self._channel
        rests = False
        if _thread_count() == 0:
            said = channel.waits(_PEACE if session.used else _PEACE_UNUSED)
            rests = not said and not session.hurried
        try:
            woken = copies.make(rests=rests)
        # Boundary: the session's code may have put anything in the place of what it takes. Without
        # a copy the session goes on, and the state before is the one to go back to.
        except Exception as error:  # noqa: BLE001
            _write(2, f"no copy of the session was made: {type(error).__name__}\n".encode())
            return
        if woken is not None:
            self._take_over(copies, woken)
        # A host that lets the session rest does not notice that the next cell takes longer, while
        # pages that the worker shares with its copy are in memory once.
        if session.hurried and not channel.waits(0):
            self._cells.touch_pages()
            if _thread_count() == 0 and not channel.waits(_REST):
                session.hurried, copies.due = False, True  # another copy, which shares all pages

    def branch(self, copies: BranchFork) -> None:
        """Say that there is no variable `ASK_FOR_BRANCH`, and fork a branch if init orders it."""
        woken = copies.branch(self._decline, complain, self._foresee)
        if woken is None:
            return
        try:
            self._take_over(copies, woken)
        # Boundary: there must be no half of a branch that hears its host.
        except BaseException:  # noqa: BLE001
            _exit(1)
        # Many branches are never asked for anything, and need no copy.
        self._channel.waits(-1)

    def _decline(self) -> None:
        self._channel.send(value_transfer.unknown(ASK_FOR_BRANCH))

    def _foresee(self, lacks: LostResources) -> list[str] | None:
        return lacks.foresee(self._namespace)

    def _take_over(self, copies: BranchFork, woken: Woken) -> None:
        """In a copy: be the session's worker from here on, for the last one is gone."""
        if woken.cpu_left:
            _setrlimit(_CPU, (woken.cpu_left, woken.cpu_left + 1))
        lost = []
        if woken.moved is not None:
            if not woken.said:
                lost = workspace_copy.copy(*woken.moved)
            workspace_copy.enter(*woken.moved)
            MODULES.move(woken.moved[1])
        lost += copies.bring_back(woken, self._namespace)
        self._channel.renew()
        if woken.seed is not None:
            seed(woken.seed)
        self._calls.forked = False
        self._calls.cell = 0
        self._process.begin()
        self._channel.open(woken.worker)
        ready, restored = self._channel.said(Ready(VERSION)), Restored(woken.cell, tuple(lost))
        if woken.said:
            self._channel.said(restored)
        else:
            self._channel.send(restored, after=ready)
        # Its own copy is this process. Without another, the next cell that dies would take with it
        # what the last one did.
        copies.due = True

    # ── in a template, before any session ─────────────────────────────────────────────────────

    def rehearse_branch(self, copies: BranchFork) -> None:
        """Fork a branch that an order waits for, where forks fail."""
        copies.branch(_nothing, complain, self._foresee)

    def rehearse(self, copies: BranchFork) -> None:
        """Take over, by an order that waits for `copies`."""
        self._take_over(copies, copies.rehearse_waking())


def _nothing() -> None:
    """What a host is told that is none."""


def complain(error: BaseException) -> None:
    """Say, as output of the next cell, what code of the session raised while none ran."""
    _write(2, f"between cells, a signal handler raised {type(error).__name__}\n".encode())
