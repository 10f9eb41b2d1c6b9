"""`SessionBranch`: a worker, its waiting snapshots, and the host's orders about them.

A session starts with one branch, the original; each further one has a control socket of its own.
All branches of a session share its init, its namespaces and its users: they are one trust domain.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Protocol

from ..jail import processes, rlimits, session_directory, users
from ..jail.session_jail import Jail
from ..protocol import control_channel
from ..snapshots.snapshot_table import SnapshotTable
from ..snapshots.workspace_snapshots import ALL_REMOVED
from . import file_helper
from .worker_rollback import WorkerRollback

# Seconds that a worker to be killed may still take for the snapshot of the last cell's state: a
# fork and a few system calls, for which an overloaded machine may give it no processor. Code that
# prevents the snapshot gains no more than this, and loses that state.
_LAST_WILL = 5.0

_CROWDED = (
    "the state after the last cell, which had no copy: too many of its descriptors would be lost "
    "(at most three quarters of Limits.open_files)"
)


@dataclass(frozen=True, slots=True)
class BranchStreams:
    """Standard output and error of a branch; the original has those of init."""

    stdout: int
    stderr: int


class InitSession(Protocol):
    """The interface of init that a branch uses."""

    @property
    def lines(self) -> Sequence[SessionBranch]:
        """All branches of the session."""

    def fork(self) -> int:
        """Fork; 0 in the child."""

    def reap(self) -> None:
        """Reap dead children, and notify their branches."""

    def be_worker(self, line: SessionBranch, fd: int) -> None:
        """Be the next worker of `line`, on socket `fd`."""

    def branch(
        self, line: SessionBranch, message: control_channel.Message, descriptors: Sequence[int]
    ) -> bool:
        """Make a branch of `line`; return whether there is one."""

    def leave(self, line: SessionBranch) -> None:
        """Handle the end of the host's connection to `line`."""


class SessionBranch:
    """One branch; `worker` is the process id of its worker, 0 while there is none."""

    def __init__(
        self,
        session: InitSession,
        jail: Jail,
        control_fd: int,
        worker: int,
        states: SnapshotTable,
        revival: WorkerRollback | None,
        streams: BranchStreams | None = None,
    ) -> None:
        self.jail = jail
        self.control_fd = control_fd
        self.worker = worker
        self.states = states
        self.revival = revival
        self.streams = streams
        # Every worker so far leads a session (setsid(2)) that its children stay in.
        self.roots = {worker}
        self._session = session
        self._generation = 1
        self._overfull = False
        # The cell whose snapshot must precede the worker's end, and the deadline of that.
        self._last_will: tuple[int, float] | None = None

    @cached_property
    def _control(self) -> socket.socket:
        # Made when first needed: most sessions end before that.
        return control_channel.open_end(self.control_fd)

    def copies(self) -> set[int]:
        """The process ids of its waiting snapshots."""
        return set() if self.revival is None else {pid for pid, _ in self.revival.rows()}

    def died(self, status: int, cpu: float) -> None:
        """Handle the worker's death: end its processes, or stop them if a snapshot may take
        over.
        """
        self.worker, self._last_will = 0, None
        if self.revival is None:
            self.kill_all()
        else:
            self.revival.halt()
        self._make_room()
        self._say({"died": self._generation, "status": status, "cpu": cpu})

    def obey(self) -> None:
        """Handle one order of the host, if there is one."""
        try:
            message, descriptors = self._receive()
        except BlockingIOError:
            return
        if message is None:
            self._session.leave(self)
            return
        self._ORDERS[message["op"]](self, message, descriptors)

    def kill_all(self) -> None:
        """Send SIGKILL to every other process of the session, and wait until none is left."""
        if self.revival is not None:
            self.revival.forget()
            if self.revival.members is not None:
                self.revival.end_members(set(), self.worker)
                return
            self.revival.are_gone()
        if self.jail.folder:
            processes.end_children()
            return
        try:
            os.kill(-1, signal.SIGKILL)
        except ProcessLookupError:
            return
        while True:
            try:
                os.wait4(-1, 0)
            except ChildProcessError:
                return

    def close(self) -> None:
        """End a branch: its processes, its files, its sockets."""
        assert self.revival is not None
        assert self.streams is not None
        self.revival.end_members(set(), self.worker)
        self.revival.files.remove()
        self.revival.close()
        os.close(self.streams.stdout)
        os.close(self.streams.stderr)
        self.hang_up()

    def hang_up(self) -> None:
        """Report to the host, by end of file, that the branch has ended."""
        self._control.close()

    def _say(self, message: control_channel.Message) -> None:
        with suppress(OSError):  # the host has left, and its end of file is read next
            control_channel.send(self._control, message)

    def _make_room(self) -> None:
        """Empty the directory, which all branches share, if it exceeded its limit."""
        if not self._overfull:
            return
        self._overfull = False
        lines, slot = self._session.lines, self.jail.slot
        homes = [os.path.basename(line.jail.home) for line in lines if line.jail.home]
        session_directory.clear(
            self.jail.folder, None if slot is None else users.own_id(slot), homes
        )
        for line in lines:
            if line is not self:
                line._are_removed()
            elif self.revival is not None:
                self.revival.files.are_removed()

    def _are_removed(self) -> None:
        """Note that another branch's use has cost this one its files: the host reports it with the
        next cell.
        """
        self.states.files_changed()
        self._control.setblocking(False)  # the branch may be idle, and this may happen repeatedly
        self._say({"lost": [ALL_REMOVED]})
        self._control.setblocking(True)

    def _receive(self) -> tuple[control_channel.Message | None, list[int]]:
        self._control.setblocking(False)
        try:
            return control_channel.receive_with_descriptors(self._control)
        except OSError as error:
            if isinstance(error, BlockingIOError):
                raise
            return None, []
        finally:
            self._control.setblocking(True)

    # ── orders ────────────────────────────────────────────────────────────────────────────────

    def _interrupt(self, message: control_channel.Message, descriptors: Sequence[int]) -> None:
        # init is the parent, so the pid cannot have been reused.
        self.states.interrupted = message["cell"]  # before it can come
        if self.worker:
            os.kill(self.worker, signal.SIGINT)
        self._say({"interrupted": message["cell"]})

    def _kill(self, message: control_channel.Message, descriptors: Sequence[int]) -> None:
        self._overfull = message.get("reason") == "workspace"
        if "after" not in message or self.revival is None:
            self._last_will = None
        elif self._last_will is None:
            self._last_will = message["after"], time.monotonic() + _LAST_WILL
        self.end_worker()

    @property
    def is_ending(self) -> bool:
        """Whether its worker is about to be killed."""
        return self._last_will is not None

    def end_worker(self) -> None:
        """Kill the worker, unless it still has to make a snapshot of a cell's state, and has
        time.
        """
        if self._last_will is not None and self.revival is not None:
            cell, until = self._last_will
            copied = any(after == cell for _, after in self.revival.rows())
            if not copied and time.monotonic() < until:
                return
        self._last_will = None
        if self.worker:
            os.kill(self.worker, signal.SIGKILL)

    def _start(self, message: control_channel.Message, descriptors: Sequence[int]) -> None:
        """Start the next worker, empty."""
        if self.revival is not None:
            self.worker = 0
            if message["files"]:
                self._say({"lost": self.revival.clear()})
            else:
                self.kill_all()
        self.jail.rlimits = rlimits.plan(message["rlimits"])
        self._generation += 1
        pid = self._session.fork()
        if pid == 0:
            self._session.be_worker(self, descriptors[0])
        os.close(descriptors[0])
        self._goes_on(pid)

    def _revive(self, message: control_channel.Message, descriptors: Sequence[int]) -> None:
        """Activate the snapshot that the host names, and end all processes that started after it
        was made.
        """
        assert self.revival is not None
        revived = self.revival.wake(
            self.worker, message["cell"], message["cpu_left"], descriptors[0]
        )
        os.close(descriptors[0])
        if revived.pid:
            self._generation += 1
            self._goes_on(revived.pid)
        lost = list(revived.lost)
        if message["cell"] is None and self.states.crowded:  # then it is not of the last state
            lost.append(_CROWDED)
        self.states.crowded = False
        self._say({"revived": bool(revived.pid), "cpu": revived.cpu, "lost": lost})

    def _goes_on(self, worker: int) -> None:
        self.worker, self._last_will = worker, None
        self.roots.add(worker)

    def _keep(self, message: control_channel.Message, descriptors: Sequence[int]) -> None:
        assert self.revival is not None
        with socket.socket(fileno=descriptors[0]) as host:
            request = control_channel.receive(host)
            if request is not None:
                self.revival.keep_for_host(request["cell"])
            with suppress(OSError):
                control_channel.send(host, {})

    def _branch(self, message: control_channel.Message, descriptors: Sequence[int]) -> None:
        made = self._session.branch(self, message, descriptors)
        self._say({"branched": made, "number": message["number"]})

    def _files(self, message: control_channel.Message, descriptors: Sequence[int]) -> None:
        """Fork a file helper for the host's other end of a socket."""
        fd = descriptors[0]
        # If the worker died first: ending its processes would end the helper too.
        self._session.reap()
        try:
            pid = self._session.fork()
        except OSError as error:
            file_helper.refuse(fd, error)
            return
        if pid == 0:
            file_helper.be_clerk(self.jail, fd)
        os.close(fd)
        if self.revival is not None:
            self.revival.trusted.add(pid)

    _ORDERS: ClassVar[
        dict[str, Callable[[SessionBranch, control_channel.Message, Sequence[int]], None]]
    ] = {
        "interrupt": _interrupt,
        "kill": _kill,
        "start": _start,
        "revive": _revive,
        "keep": _keep,
        "branch": _branch,
        "files": _files,
    }
