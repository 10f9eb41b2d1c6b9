"""`SnapshotControl`: decides when a worker forks snapshots, and runs take-overs and branches."""

from __future__ import annotations

import _thread
import os
import resource

from ..protocol.messages import VERSION, Ready, Restored
from ..snapshots.branch_fork import ASK_FOR_BRANCH, BranchFork
from ..snapshots.lost_resources import LostResources
from ..snapshots.snapshot_resources import Takeover
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
        self._channel.send(value_transfer.unknown(ASK_FOR_BRANCH))

    def _predict(self, lost: LostResources) -> list[str] | None:
        return lost.predict(self._namespace)

    def _take_over(self, snapshots: BranchFork, takeover: Takeover) -> None:
        """In a snapshot: become the session's worker, because the last one has ended."""
        if takeover.cpu_left:
            _setrlimit(_CPU, (takeover.cpu_left, takeover.cpu_left + 1))
        lost = []
        if takeover.workspaces is not None:
            if not takeover.announced:
                lost = workspace_copy.copy(*takeover.workspaces)
            workspace_copy.enter(*takeover.workspaces)
            MODULES.move(takeover.workspaces[1])
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
