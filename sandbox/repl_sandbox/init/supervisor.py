"""`Init`: the init process of a session: trusted, small, alive as long as the session.

It starts the workers, which build the jail around themselves, reaps the session's processes, and
does for the host what only it can do inside: interrupt, kill, start the next worker. It parses
nothing but the host's control messages. In tier `jailed` it is pid 1, and when it ends, the kernel
ends the session. In other tiers it does that itself, and removes the session's directory.
"""

from __future__ import annotations

import _signal  # the public module's enums are a hundred pages to copy in each session
import itertools
import os
import select
import signal
from collections.abc import Sequence
from functools import partial
from typing import NoReturn

from ..jail import processes, session_directory
from ..jail.recipe.recipes import RECIPES
from ..jail.session_jail import Jail
from ..native import process_forks
from ..protocol import control_channel
from ..snapshots.snapshot_table import SnapshotTable
from ..worker.main import Worker
from . import process_ownership
from .session_branches import BranchStreams, SessionBranch
from .worker_entry import run_worker
from .worker_rollback import WorkerRollback

# Milliseconds between checks whether a worker to be killed has made its snapshot: for so long it
# may do what nobody waits for.
_LOOK = 2

# Enough attempts to remove the directory of an ordinary session many times over. The rest is left
# to the zygote.
_REMOVE_SECONDS = 0.05


class Init:
    """The session's init process; `worker` is the pid of its first worker."""

    def __init__(
        self,
        jail: Jail,
        control_fd: int,
        template: Worker,
        worker: int,
        states: SnapshotTable,
        revival: WorkerRollback | None,
    ) -> None:
        self._template = template
        self._folder = jail.folder
        self._lines = [SessionBranch(self, jail, control_fd, worker, states, revival)]
        self._branches = itertools.count(1)
        self._woken, wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        self._ending = False
        if jail.folder:
            _signal.signal(_signal.SIGTERM, self._note_end)
            _signal.pthread_sigmask(_signal.SIG_UNBLOCK, [_signal.SIGTERM])

    def _note_end(self, number: int, frame: object) -> None:
        self._ending = True

    def serve(self) -> NoReturn:
        """Handle orders and reap children, until the host has closed every control socket."""
        poller, lines = self.poller(), self._lines
        while True:
            # First, because the first worker may have died before SIGCHLD could wake this process.
            self.reap()
            if self._ending:
                self._end()
            if lines is not self._lines:
                poller, lines = self.poller(), self._lines
            ready = poller.poll(_LOOK if any(line.is_ending for line in lines) else None)
            self.hear({fd for fd, _ in ready})

    def hear(self, ready: set[int]) -> None:
        """Handle input on the descriptors that are ready."""
        self._drain()
        for line in self._lines:
            if line.revival is not None:
                line.revival.hear(ready)
            if line.control_fd in ready:
                line.obey()
            if line.is_ending:
                line.end_worker()

    def poller(self) -> select.poll:
        """The poller of all descriptors with input."""
        poller = select.poll()
        poller.register(self._woken, select.POLLIN)
        for line in self._lines:
            poller.register(line.control_fd, select.POLLIN)
            if line.revival is not None:
                line.revival.files.listen(poller)
        return poller

    def close(self) -> None:
        """Release the poller's descriptors, in an init that does not serve."""
        for fd in (self._woken, signal.set_wakeup_fd(-1)):
            os.close(fd)

    def _end(self) -> NoReturn:
        """End the whole session."""
        if self._folder:
            processes.end_children()
            # A process that waits for this one need not wait for the removal of a million files.
            session_directory.remove(self._folder, _REMOVE_SECONDS)
        os._exit(0)

    def _drain(self) -> None:
        try:
            os.read(self._woken, 4096)
        except BlockingIOError:
            pass

    def reap(self) -> None:
        """Reap dead children; a branch whose worker is among them is notified."""
        while pid := _first_dead():
            line = next((line for line in self._lines if line.worker == pid), None)
            if line is not None:
                _, status, usage = os.wait4(pid, 0)
                line.died(status, usage.ru_utime + usage.ru_stime)
                continue
            # wait4 allocates much more than the wait itself: after each cell a snapshot ends.
            os.waitpid(pid, 0)
            for line in self._lines:
                if line.revival is not None:
                    line.revival.trusted.discard(pid)

    @property
    def lines(self) -> Sequence[SessionBranch]:
        """All branches of the session."""
        return self._lines

    def fork(self) -> int:
        """Fork; 0 in the child, which does not handle init's signals."""
        pid = process_forks.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
        return pid

    def be_worker(self, line: SessionBranch, fd: int) -> NoReturn:
        """Be the next worker of `line`, on socket `fd`."""
        if line.streams is not None:
            os.dup2(line.streams.stdout, 1)
            os.dup2(line.streams.stderr, 2)
        steps = RECIPES[line.jail.tier].worker
        fds = line.control_fd, fd
        run_worker(line.jail, steps, *fds, self._template, line.states, line.revival)

    # ── branches ──────────────────────────────────────────────────────────────────────────────

    def branch(
        self, line: SessionBranch, message: control_channel.Message, descriptors: Sequence[int]
    ) -> bool:
        """Have the worker of `line` fork a branch; return whether it did.

        `descriptors`: the branch's control socket, worker socket, stdout, stderr, snapshot table.
        """
        control_fd, worker, stdout, stderr, states = descriptors
        place = f"{line.jail.folder or '/tmp'}/branch-{next(self._branches)}"
        branch = None
        if line.revival is not None:
            branch = line.revival.fork_branch(line.worker, message["seed"], place, descriptors[1:])
        for fd in (worker, states):
            os.close(fd)
        if branch is not None:
            pid, revival = branch
            # The worker's report, which code may have forged: no process belongs to two branches.
            if not any(pid in other.roots | other.copies() for other in self._lines):
                streams = BranchStreams(stdout, stderr)
                made = SessionBranch(
                    self, revival.jail, control_fd, pid, revival.states, revival, streams
                )
                self._change([*self._lines, made])
                return True
            revival.close()
        for fd in (control_fd, stdout, stderr):
            os.close(fd)
        return False

    def leave(self, line: SessionBranch) -> None:
        """Handle the end of the host's connection to `line`; with the last one the session ends."""
        if len(self._lines) == 1:
            self._end()
        if line.streams is None:
            # The original branch stands for the session, and owns the processes of no branch.
            line.kill_all()
            line.worker = 0
            line.hang_up()
        else:
            line.close()
        self._change([other for other in self._lines if other is not line])

    def _change(self, lines: list[SessionBranch]) -> None:
        """Update the scope of "all processes", which depends on the number of branches."""
        self._lines = lines
        for line in lines:
            if line.revival is not None:
                alone = len(lines) == 1 and line.streams is None
                line.revival.members = None if alone else partial(self._members, line)

    def _members(self, line: SessionBranch) -> list[int]:
        """The living processes of `line`, its snapshots among them.

        Processes of no branch belong to the original, or to nobody when that is gone.
        """
        trusted = {pid for each in self._lines if each.revival for pid in each.revival.trusted}
        return process_ownership.members(
            {id(each): each.roots | each.copies() for each in self._lines if each.streams},
            id(line) if line.streams else None,
            trusted,
        )


def _first_dead() -> int:
    """The child to reap next, 0 if there is none; allocates nothing in that case."""
    try:
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return 0
    return 0 if ended is None else ended.si_pid
