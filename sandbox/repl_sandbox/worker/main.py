"""`Worker`: reads commands of the host and executes them, until the host closes the connection."""

from __future__ import annotations

import gc
import json
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
    Value,
    Variables,
)
from . import variables
from .answers import FinalAnswers
from .branch import ASK_FOR_BRANCH, BranchFork, SnapshotControl, complain
from .cell_runner import CellRunner, SessionState, WorkerProcess
from .channel import Disconnected, Interrupts, WorkerChannel
from .host_stubs import HostCallClient
from .imports import MODULES, import_trusted
from .namespace import Namespace
from .snapshot_table import SnapshotTable
from .snapshots import SnapshotResources
from .streams import OutputHistory, StandardStreams
from .variables import VariableChanges, seed

if TYPE_CHECKING:
    from ..policies.rules import PolicyRules
    from ..protocol.messages import FunctionSchema


# `CheckpointRequests`: writes a worker's namespace to a checkpoint, and restores one.

_loads = json.loads


class CheckpointRequests:
    """Checkpoint requests of one namespace; each is an internal job of `cells`."""

    __slots__ = ("_cells", "_changes", "_namespace", "_session")

    def __init__(
        self,
        session: SessionState,
        cells: CellRunner,
        namespace: Namespace,
        changes: VariableChanges,
    ) -> None:
        self._session, self._cells = session, cells
        self._namespace, self._changes = namespace, changes

    # Modules that only checkpoints need are not part of the template.

    def save(self, command: Save) -> None:
        """Write the namespace to the file attached to the command."""

        def job(fd: int) -> str:
            save = import_trusted(f"{__package__}.checkpoint").save
            return str(save(self._namespace, self._session.answers, fd, command.size))

        self._cells.run_job(command.cell, job)

    def load(self, command: Load) -> None:
        """Bind the variables in the file attached to the command."""

        def job(fd: int) -> str:
            load = import_trusted(f"{__package__}.checkpoint").load
            manifest = _loads(command.manifest)
            missing = str(load(self._namespace, self._session.answers, fd, manifest))
            # Restored variables are not changes of the next cell.
            self._changes.since_last()
            return missing

        self._cells.run_job(command.cell, job)


# `NamespaceRequests`: requests of the host between cells, mainly about variables.


class NamespaceRequests:
    """Requests about one namespace; all but `configure` send a reply."""

    __slots__ = ("_calls", "_changes", "_channel", "_namespace", "_session")

    def __init__(
        self,
        session: SessionState,
        channel: WorkerChannel,
        calls: HostCallClient,
        namespace: Namespace,
        changes: VariableChanges,
    ) -> None:
        self._session, self._channel, self._calls = session, channel, calls
        self._namespace, self._changes = namespace, changes

    def configure(self, configure: Configure) -> None:
        """Give the namespace host functions, variables, answer functions and a random seed."""
        bound = [offered for offered in configure.functions if not offered.is_plain]
        for offered in configure.functions:
            function = self._calls.function(offered)
            self._namespace.inject(offered.name, function, protected=True)
        if bound:
            self._inject_functions(bound)
        if configure.answers is not None:
            answers = self._session.answers = FinalAnswers(self._namespace, self._calls.answer)
            if configure.answers == "compatible":
                self._session.printed = answers.printed
        seed(configure.seed)
        for variable in configure.variables:
            self._bind(variable)
        # Injected objects are not changes of the first cell.
        self._changes.since_last()

    def _inject_functions(self, bound: list[FunctionSchema]) -> None:
        # Not part of the template: most sessions need no such stubs.
        faces = import_trusted(f"{__package__}.return_types").ReturnTypes(self._calls)
        for offered in bound:
            self._namespace.inject(offered.name, faces.function(offered), protected=True)
        for name, error in faces.errors.items():
            self._namespace.inject(name, error, protected=True)

    def _bind(self, assign: Assign) -> None:
        value = variables.read_value(assign, self._calls.memfd)
        if self._session.answers is not None and assign.name == "answer":
            self._session.answers.begin_anew()
            return
        self._namespace.globals[assign.name] = value

    def assign(self, assign: Assign) -> None:
        """Bind a variable to a value from the host."""
        try:
            self._bind(assign)
        except (MemoryError, ValueError, RecursionError, OSError) as error:
            self._channel.send(variables.unbound(assign, error))
            return
        self._changes.since_last()
        self._session.changed()
        self._channel.send(Value(b"null"))

    def fetch(self, fetch: Fetch) -> None:
        """Send the value of a variable."""
        if fetch.name not in self._namespace.globals:
            self._channel.send(variables.unknown_name(fetch.name))
        else:
            self._channel.send(variables.write_value(self._namespace.globals[fetch.name]))

    def list_variables(self, command: ListVariables) -> None:
        """Send the names of all variables, with a preview of each."""
        self._channel.send(Variables(tuple(self._changes.variables())))


_exit = os._exit

# Milliseconds in which a host that opened a session for a cell has sent that cell.
_FIRST_CELL_WAIT = 2


class Worker:
    """One namespace and its connection to the host.

    Made once, in the template; each session's process is a fork of the template and calls `serve`.
    """

    def __init__(self, rules: PolicyRules | None = None) -> None:
        self._checks_modules = rules is None or rules.check_module is not None
        # True if the worker and its host have more than one processor.
        self._has_processors = len(os.sched_getaffinity(0)) > 1
        session = self._session = SessionState()
        interrupts = Interrupts()
        interrupts.target_cell = session.interrupted
        interrupts.replace_default()
        channel = self._channel = WorkerChannel(interrupts)
        calls = self._calls = HostCallClient(channel)
        namespace = self._namespace = Namespace(interrupts.ends_cell)
        streams = self._streams = StandardStreams(calls.streams)
        namespace.inject("_out", OutputHistory(calls.call, lambda: calls.cell))
        namespace.inject("HostCallError", HostCallError)
        if rules is not None:
            _apply_policy(rules, namespace)
        changes = self._changes = VariableChanges(namespace)
        process = self._process = WorkerProcess(streams)
        cells = self._cells = CellRunner(
            session, process, channel, interrupts, calls, streams, namespace, changes
        )
        self._snapshot_control = SnapshotControl(session, process, channel, calls, namespace, cells)
        namespace_requests = self._namespace_requests = NamespaceRequests(
            session, channel, calls, namespace, changes
        )
        checkpoints = CheckpointRequests(session, cells, namespace, changes)
        self._between_cells: dict[type, Callable[[Any], None]] = {
            Configure: namespace_requests.configure,
            Assign: namespace_requests.assign,
            Fetch: self._fetch,
            ListVariables: namespace_requests.list_variables,
            Save: checkpoints.save,
            Load: checkpoints.load,
        }

    # ── in the template ───────────────────────────────────────────────────────────────────────

    def share(self, objects: dict[str, object]) -> None:
        """Bind variables that all sessions of the template have from the start."""
        self._namespace.globals.update(objects)
        self._changes.since_last()
        self._process.measure()

    def watch_streams(self) -> None:
        """Treat the standard streams as a session's from here on."""
        self._streams.are_watched = True

    def import_from(self, workspace: str) -> None:
        """Import the session's own modules from this folder; call before the session begins."""
        if self._checks_modules:
            MODULES.folder = workspace

    def watch_forks(self) -> None:
        """Install the hooks for processes that the session's code forks."""
        os.register_at_fork(after_in_child=self._after_fork)

    def _after_fork(self) -> None:
        # The connection is the parent's: bytes written by a child would corrupt it.
        self._channel.close()
        self._calls.forked = True

    def prepare(self, fd: int) -> bytes:
        """Bring the worker to the state after its start, on a future socket `fd`.

        Returns: the bytes to send on that socket.
        """
        own_end, worker_end = socket.socketpair()
        with own_end, worker_end:
            # A temporary descriptor, so that a socket object of that number can be made.
            os.dup2(worker_end.fileno(), fd, inheritable=False)
            self._channel.open(fd)
            os.close(fd)
        # Measured here, so that the first cell of each session, usually short, need not.
        self._process.measure()
        return self._channel.encoded(Ready(VERSION))

    def warm_up_branch(self, snapshots: BranchFork) -> None:
        """Fork a branch for a pending command while forks fail (warm-up)."""
        self._snapshot_control.warm_up_branch(snapshots)

    def warm_up_takeover(self, snapshots: BranchFork) -> None:
        """Take over by a pending command for `snapshots`, as a warm-up that ends this process."""
        self._snapshot_control.warm_up_takeover(snapshots)
        snapshots.close()
        self.close()

    # ── in a session ──────────────────────────────────────────────────────────────────────────

    def serve(self, fd: int, table: SnapshotTable, resources: SnapshotResources | None) -> NoReturn:
        """Execute commands from socket `fd` until the host closes it; then end the process.

        `table`, `resources`: as in `join_session`.
        """
        self.join_session(fd, table, resources)
        try:
            self.open(fd)
            if not self._channel.has_input(_FIRST_CELL_WAIT):
                self._cells.touch_pages()
            self._serve()
        except Disconnected:
            _exit(0)

    def serve_prepared(self) -> None:
        """`serve` for a worker for which `join_session` ran before it was forked.

        The return value of `prepare` has been sent, and a command has arrived. Returns when the
        host has closed the connection.
        """
        self._process.begin()
        try:
            self._serve()
        except Disconnected:
            pass

    def join_session(
        self, fd: int, table: SnapshotTable, resources: SnapshotResources | None
    ) -> None:
        """Become the worker of a session that uses socket `fd`.

        `table`: the memory page shared with the session's init. With `resources`, the worker forks
        a snapshot after each command that changes the state.
        """
        self._session.table = table
        self._session.snapshots = None if resources is None else BranchFork(resources, fd)
        # A process that sleeps in recvmsg(2) also wakes when the host reads what was sent to it,
        # because there is room to write then (unix_write_space); poll(2) selects the events. It is
        # one call more, and saves nothing where the host has already read: while a snapshot is
        # forked, and with one processor for both.
        self._channel.polls = resources is None and self._has_processors

    def open(self, fd: int) -> None:
        """Begin the connection on socket `fd`."""
        self._process.begin()
        self._channel.open(fd)
        self._channel.send(Ready(VERSION))

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()

    def _serve(self) -> NoReturn:
        gc.enable()
        while True:
            try:
                self.handle_command()
            except Disconnected:
                raise
            # Boundary: a signal handler of the session's code may raise while no cell runs.
            except BaseException as error:
                if not self._channel.idle:
                    raise
                complain(error)

    def handle_command(self) -> None:
        """Wait for one command and execute it."""
        snapshots = self._session.snapshots
        # A snapshot that took over needs a snapshot itself: the worker may die before a cell ends.
        while snapshots is not None and snapshots.due:
            self._snapshot_control.make(snapshots)
        command = self._channel.next_command()
        if type(command) is tuple:
            cell, code = command
            result = self._cells.execute(cell, code)
            self._channel.end_cell(result)
        elif type(command) is Execute:  # the command was not exactly one chunk
            result = self._cells.execute(command.cell, command.code)
            self._channel.end_cell(result)
        else:
            if snapshots is not None:
                snapshots.wait_until_detached()
            self._between_cells[type(command)](command)

    def _fetch(self, fetch: Fetch) -> None:
        snapshots = self._session.snapshots
        if fetch.name == ASK_FOR_BRANCH and snapshots is not None:
            self._snapshot_control.branch(snapshots)
        else:
            self._namespace_requests.fetch(fetch)


def _apply_policy(rules: PolicyRules, namespace: Namespace) -> None:
    namespace.check = rules.check
    namespace.inject("PolicyError", PolicyError)
    if rules.builtins is not None:
        namespace.globals["__builtins__"] = rules.builtins
