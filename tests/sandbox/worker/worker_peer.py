"""Parts of a worker without a session: the test acts as the host and as init."""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from repl_sandbox.protocol.connection import HostConnection
from repl_sandbox.protocol.messages import VERSION, HostMessage, Ready, Result, WorkerMessage
from repl_sandbox.worker.branch import BranchFork, Predict
from repl_sandbox.worker.cell_runner import CellRunner, SessionState, WorkerProcess
from repl_sandbox.worker.channel import Interrupts, WorkerChannel
from repl_sandbox.worker.evaluation import NOTHING, CellRun
from repl_sandbox.worker.host_stubs import HostCallClient
from repl_sandbox.worker.namespace import Namespace, forget_cells
from repl_sandbox.worker.snapshot_table import SnapshotTable
from repl_sandbox.worker.snapshots import Takeover
from repl_sandbox.worker.streams import StandardStreams
from repl_sandbox.worker.variables import VariableChanges


class Ended(BaseException):
    """The process would have ended now."""


class KeptStreams(StandardStreams):
    """Leaves the test's streams as they are; `looks` records whether each cell was checked."""

    def __init__(self) -> None:
        self.are_watched = True
        self.looks: list[bool] = []

    def restore(self, *, check_closed: bool = True) -> None:
        """Record the end of a cell."""
        self.looks.append(check_closed)


class LastingProcess(WorkerProcess):
    """A process that does not end, and may pretend to be a child."""

    forked = False
    ran: CellRun | None = None
    begun = 0

    def begin(self) -> None:
        """Record the call."""
        self.begun += 1
        super().begin()

    def is_forked_child(self) -> bool:
        """Return the test's value."""
        return self.forked

    def end_child(self, ran: CellRun = NOTHING) -> NoReturn:
        """Raise `Ended`."""
        self.ran = ran
        raise Ended

    def exit_without_snapshot(self) -> NoReturn:
        """Raise `Ended`."""
        raise Ended


class FileCalls(HostCallClient):
    """Gets the file attached to a command from the test."""

    file: int | OSError = OSError("none")

    def memfd(self) -> int:
        """Return a descriptor of `file`."""
        if isinstance(self.file, OSError):
            raise self.file
        return os.dup(self.file)


class FakeSnapshots(BranchFork):
    """Makes no snapshots: the test gives their results. `log` records the calls."""

    def __init__(self, table: SnapshotTable) -> None:
        self.due = False
        self.cell = 0
        self.table = table
        self.connected = True
        self.log: list[object] = []
        self.comes: Takeover | Exception | None = None

    def wait_until_detached(self) -> None:
        """Record the call."""
        self.log.append("wait_until_detached")

    def is_connected(self) -> bool:
        """Return the test's value."""
        return self.connected

    def make(self, *, waits_for_host: bool = False) -> Takeover | None:
        """Record the call; return or raise the test's outcome."""
        self.due = False
        self.log.append(("make", waits_for_host))
        return self._outcome()

    def branch(
        self,
        answer: Callable[[], None],
        complain: Callable[[BaseException], None],
        predict: Predict,
    ) -> Takeover | None:
        """Answer; return or raise the test's outcome."""
        answer()
        return self._outcome()

    def restore_resources(self, takeover: Takeover, namespace: Namespace) -> list[str]:
        """Return the lost resources that the test gives."""
        return list(takeover.lost.names)

    def _outcome(self) -> Takeover | None:
        if isinstance(self.comes, Exception):
            raise self.comes
        return self.comes


class Peer:
    """The parts of one worker, and the host's end of its socket."""

    def __init__(self) -> None:
        forget_cells()
        self._main, self._finders = sys.modules["__main__"], sys.meta_path[:]
        self._handler = signal.getsignal(signal.SIGINT)
        self.socket, theirs = socket.socketpair()
        self.connection = HostConnection()
        self.table = SnapshotTable()
        self.session = SessionState()
        self.session.table = self.table
        self.snapshots = FakeSnapshots(self.table)
        self.interrupts = Interrupts()
        self.interrupts.target_cell = self.session.interrupted
        self.channel = WorkerChannel(self.interrupts)
        self.calls = FileCalls(self.channel)
        self.namespace = Namespace()
        self.changes = VariableChanges(self.namespace)
        self.streams = KeptStreams()
        self.process = LastingProcess(self.streams)
        self.cells = CellRunner(
            self.session,
            self.process,
            self.channel,
            self.interrupts,
            self.calls,
            self.streams,
            self.namespace,
            self.changes,
        )
        self.channel.open(theirs.detach())
        self.channel.send(Ready(VERSION))
        self.hear()

    def close(self) -> None:
        """Close both ends, and restore the interpreter's state."""
        self.channel.close()
        self.socket.close()
        self.table.close()
        signal.signal(signal.SIGINT, self._handler)
        sys.modules["__main__"], sys.meta_path[:] = self._main, self._finders

    def ask(self, message: HostMessage) -> Any:
        """Send `message` as the host, and return it as the worker reads it."""
        self.socket.sendall(self.connection.send(message))
        return self.channel.next_command()

    def hear(self, connection: HostConnection | None = None) -> list[WorkerMessage]:
        """Return the unread messages to the host."""
        heard: list[WorkerMessage] = []
        while select.select([self.socket], [], [], 0)[0]:
            heard += (connection or self.connection).receive(self.socket.recv(1 << 20))
        return heard

    def execute(self, number: int, code: str) -> Result:
        """Run a cell and return its result."""
        self.socket.sendall(self.connection.execute(number, code.encode("utf-8", "surrogatepass")))
        command = self.channel.next_command()
        assert isinstance(command, tuple)
        self.channel.end_cell(self.cells.execute(*command))
        (result,) = self.hear()
        assert isinstance(result, Result)
        return result
