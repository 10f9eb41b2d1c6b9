"""`Worker`: composed of its parts; reads a command and has it done, until the host is gone."""

from __future__ import annotations

import builtins
import gc
import os
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

from ..errors import HostCallError, PolicyError
from ..protocol.messages import (
    VERSION,
    Assign,
    Configure,
    Execute,
    Fetch,
    ListVariables,
    Load,
    Ready,
    Save,
)
from ..snapshots.branch_fork import ASK_FOR_BRANCH, BranchFork
from ..snapshots.snapshot_processes import SnapshotRecovery
from ..snapshots.snapshot_table import SnapshotTable
from .cell.standard_streams import StandardStreams
from .cell_runner import CellRunner
from .checkpoint_requests import CheckpointRequests
from .host_stubs.host_call_client import HostCallClient
from .interrupts import Interrupts
from .namespace.main_namespace import Namespace
from .namespace.workspace_modules import MODULES
from .namespace_requests import NamespaceRequests
from .session_state import SessionState
from .snapshot_control import SnapshotControl, complain
from .variables.output_history import OutputHistory
from .variables.printed_answers import HOOK, call_hook
from .variables.variable_changes import VariableChanges
from .worker_channel import Disconnected, WorkerChannel
from .worker_process import WorkerProcess

if TYPE_CHECKING:
    from ..policies.rules import PolicyRules

_exit = os._exit

# Milliseconds in which a host that opened a session for a cell has sent it.
_SOON = 2


class Worker:
    """One namespace and the conversation about it.

    Made once, in the template; each session's process is a fork of that and calls `serve`.
    """

    def __init__(self, rules: PolicyRules | None = None) -> None:
        self._checks_modules = rules is None or rules.check_module is not None
        # Whether there is more than one processor for it and the host.
        self._has_company = len(os.sched_getaffinity(0)) > 1
        session = self._session = SessionState()
        interrupts = Interrupts()
        interrupts.meant = session.interrupted
        channel = self._channel = WorkerChannel(interrupts)
        calls = self._calls = HostCallClient(channel)
        namespace = self._namespace = Namespace()
        streams = self._streams = StandardStreams(calls.streams)
        namespace.inject("_out", OutputHistory(calls.call, lambda: calls.cell))
        builtins.HostCallError = HostCallError  # type: ignore[attr-defined]
        if rules is not None:
            _follow(rules, namespace)
        changes = self._changes = VariableChanges(namespace)
        process = self._process = WorkerProcess(streams)
        cells = self._cells = CellRunner(
            session, process, channel, interrupts, calls, streams, namespace, changes
        )
        self._snapshots = SnapshotControl(session, process, channel, calls, namespace, cells)
        questions = self._questions = NamespaceRequests(session, channel, calls, namespace, changes)
        checkpoints = CheckpointRequests(session, cells, namespace, changes)
        self._between_cells: dict[type, Callable[[Any], None]] = {
            Configure: questions.configure,
            Assign: questions.assign,
            Fetch: self._fetch,
            ListVariables: questions.list_variables,
            Save: checkpoints.save,
            Load: checkpoints.load,
        }

    # ── in the template ───────────────────────────────────────────────────────────────────────

    def share(self, objects: dict[str, object]) -> None:
        """Bind these for its sessions, as variables that were always there."""
        self._namespace.globals.update(objects)
        self._changes.since_last()
        self._process.measure()

    def watch_streams(self) -> None:
        """From here on its standard streams are a session's."""
        self._streams.watches = True

    def import_from(self, workspace: str) -> None:
        """Before it begins: the modules of this folder are its session's."""
        if self._checks_modules:
            MODULES.folder = workspace

    def follow_forks(self) -> None:
        """See to what the session's code forks."""
        os.register_at_fork(after_in_child=self._after_fork)

    def _after_fork(self) -> None:
        # The conversation is the parent's; a child that wrote into it would tear it.
        self._channel.close()
        self._calls.forked = True

    def prepare(self, fd: int) -> bytes:
        """Be as one that has begun, on a socket `fd` that there will be.

        Returns: what has to be sent there.
        """
        ours, theirs = socket.socketpair()
        with ours, theirs:
            # For as long as it takes to have an object of that number.
            os.dup2(theirs.fileno(), fd, inheritable=False)
            self._channel.open(fd)
            os.close(fd)
        # Not asked for by each session's first cell, which is short as a rule.
        self._process.measure()
        return self._channel.said(Ready(VERSION))

    def rehearse_branch(self, copies: BranchFork) -> None:
        """Fork a branch that an order waits for, where forks fail."""
        self._snapshots.rehearse_branch(copies)

    def rehearse(self, copies: BranchFork) -> None:
        """Take over, by an order that waits for `copies`, and be of no use then."""
        self._snapshots.rehearse(copies)
        copies.close()
        self.close()

    # ── in a session ──────────────────────────────────────────────────────────────────────────

    def serve(self, fd: int, states: SnapshotTable, recovery: SnapshotRecovery | None) -> NoReturn:
        """Obey the host on socket `fd` until it closes the conversation; then the process ends.

        `states`, `recovery`: as of `belong_to`.
        """
        self.belong_to(fd, states, recovery)
        try:
            self.open(fd)
            if not self._channel.waits(_SOON):
                self._cells.touch_pages()
            self._obey_always()
        except Disconnected:
            _exit(0)

    def serve_on(self) -> None:
        """As `serve`, for who was made to `belong_to` a session before it was forked.

        What `prepare` returned was sent, and a command has come. Returns when the host has closed
        the conversation.
        """
        self._process.begin()
        try:
            self._obey_always()
        except Disconnected:
            pass

    def belong_to(self, fd: int, states: SnapshotTable, recovery: SnapshotRecovery | None) -> None:
        """Be the worker of a session which speaks on socket `fd`.

        `states`: the page that it shares with its init. With `recovery`, after all that changes the
        state a copy of this process is made that can take over.
        """
        self._session.states = states
        self._session.copies = None if recovery is None else BranchFork(recovery, fd)
        # Who sleeps in recvmsg(2) is also woken as the host reads what was sent to it: there is
        # room to write then (unix_write_space). poll(2) says what to be woken by. It is one call
        # more, and saves nothing where the host has read by then: while a copy is made, and with
        # one processor for both.
        self._channel.polls = recovery is None and self._has_company

    def open(self, fd: int) -> None:
        """Begin the conversation on socket `fd`."""
        self._process.begin()
        self._channel.open(fd)
        self._channel.send(Ready(VERSION))

    def close(self) -> None:
        """End the conversation."""
        self._channel.close()

    def _obey_always(self) -> NoReturn:
        gc.enable()
        while True:
            try:
                self.obey()
            except Disconnected:
                raise
            # Boundary: a signal handler of the session's code may raise while nothing runs.
            except BaseException as error:
                if not self._channel.idle:
                    raise
                complain(error)

    def obey(self) -> None:
        """Wait for one command and do it."""
        copies = self._session.copies
        # One that takes over has to be copied as well: the next death may come before a cell ends.
        while copies is not None and copies.due:
            self._snapshots.make(copies)
        command = self._channel.next_command()
        if type(command) is tuple:
            cell, code = command
            result = self._cells.execute(cell, code)
            self._channel.end_cell(result)
        elif type(command) is Execute:  # a chunk of its own does not hold it, whole and alone
            result = self._cells.execute(command.cell, command.code)
            self._channel.end_cell(result)
        else:
            if copies is not None:
                copies.settle()
            self._between_cells[type(command)](command)

    def _fetch(self, fetch: Fetch) -> None:
        copies = self._session.copies
        if fetch.name == ASK_FOR_BRANCH and copies is not None:
            self._snapshots.branch(copies)
        else:
            self._questions.fetch(fetch)


def _follow(rules: PolicyRules, namespace: Namespace) -> None:
    namespace.check = rules.check
    builtins.PolicyError = PolicyError  # type: ignore[attr-defined]
    if rules.builtins is not None:
        rules.builtins[HOOK] = call_hook
        namespace.globals["__builtins__"] = rules.builtins
