"""`SnapshotControl`: decides when a worker forks snapshots, and runs take-overs and branches."""

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

# Milliseconds without a fork after a worker's answer: a session that is closed by then, as sessions
# of one cell are, is spared the snapshot.
_PEACE = 1
# Milliseconds without a command after which a session counts as idle, though its cells came fast.
_REST = 100
# The same before any code of the session has run. Its state comes from the host, the session may
# never be used, and a model thinks for longer. A cell that arrives sooner waits for its snapshot.
_PEACE_UNUSED = 1000


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

    def make(self, copies: BranchFork) -> None:
        """Keep the state before a command changes it; in an activated snapshot, take over.

        Afterwards `copies.due` may be True again.
        """
        session, channel = self._session, self._channel
        rests = False
        if _thread_count() == 0:
            said = channel.waits(_PEACE if session.used else _PEACE_UNUSED)
            rests = not said and not session.hurried
        try:
            woken = copies.make(rests=rests)
        # Boundary: the session's code may have replaced anything used here. Without a snapshot the
        # session goes on, and the state before is the one to return to.
        except Exception as error:  # noqa: BLE001
            _write(2, f"no copy of the session was made: {type(error).__name__}\n".encode())
            return
        if woken is not None:
            self._take_over(copies, woken)
        # A host that lets the session rest does not notice that the next cell takes longer, because
        # pages that the worker shares with its snapshot are written for the first time.
        if session.hurried and not channel.waits(0):
            self._cells.touch_pages()
            if _thread_count() == 0 and not channel.waits(_REST):
                # Another snapshot, which shares all pages.
                session.hurried, copies.due = False, True

    def branch(self, copies: BranchFork) -> None:
        """Reply that `ASK_FOR_BRANCH` is unknown, and fork a branch if init commands it."""
        woken = copies.branch(self._decline, complain, self._foresee)
        if woken is None:
            return
        try:
            self._take_over(copies, woken)
        # Boundary: a half-made branch must never read from its host.
        except BaseException:  # noqa: BLE001
            _exit(1)
        # Many branches never get a command, and need no snapshot.
        self._channel.waits(-1)

    def _decline(self) -> None:
        self._channel.send(value_transfer.unknown(ASK_FOR_BRANCH))

    def _foresee(self, lacks: LostResources) -> list[str] | None:
        return lacks.foresee(self._namespace)

    def _take_over(self, copies: BranchFork, woken: Woken) -> None:
        """In a snapshot: become the session's worker, because the last one has ended."""
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
        # This process was its snapshot. Without another one, a cell that dies would also lose the
        # work of the cell before.
        copies.due = True

    # ── in a template, before any session ─────────────────────────────────────────────────────

    def rehearse_branch(self, copies: BranchFork) -> None:
        """Fork a branch for a pending command while forks fail (warm-up)."""
        copies.branch(_nothing, complain, self._foresee)

    def rehearse(self, copies: BranchFork) -> None:
        """Take over by a pending command for `copies` (warm-up)."""
        self._take_over(copies, copies.rehearse_waking())


def _nothing() -> None:
    """Discard a reply that has no host."""


def complain(error: BaseException) -> None:
    """Write an exception raised by session code between cells to the output of the next cell."""
    _write(2, f"between cells, a signal handler raised {type(error).__name__}\n".encode())
