"""`Init`: the init process of a session, trusted, small, alive as long as the session; and the
entry of its workers.
"""

from __future__ import annotations

import _signal  # the public module's enums are a hundred pages to copy in each session
import fcntl
import itertools
import os
import select
import signal
from collections.abc import Collection, Sequence
from functools import partial
from typing import NoReturn

from ..errors import IsolationError
from ..jail import processes, reserved_descriptors, session_directory
from ..jail.recipe import RECIPES
from ..jail.steps import Jail, Step, contain
from ..native import forks
from ..protocol import control
from ..worker.branch_files import SHARED, shared_in
from ..worker.hints import assume_no_jail, have_files_in
from ..worker.main import Worker
from ..worker.snapshot_table import SnapshotTable
from ..worker.snapshots import SnapshotResources
from ..worker.tracebacks import show_files_below
from . import files
from .branch import BranchStreams, SessionBranch
from .rollback import WorkerRollback, members

# `run_worker`: turns a process into a worker: it confines itself, reports its isolation, and
# serves.
#
# The first worker is a fork of the session's first process, each later one a fork of its init.


def run_worker(
    jail: Jail,
    steps: Sequence[Step],
    control_fd: int,
    worker_fd: int,
    template: Worker,
    table: SnapshotTable,
    rollback: WorkerRollback | None,
    *,
    needed: Collection[int] = (),
) -> NoReturn:
    """Apply `steps` to this process, and serve the host on `worker_fd` until it ends.

    `control_fd`: init's, for the case that a step fails; closed before any code runs. `template`: a
    worker that was made before the fork. `table`, `rollback`: shared with init. `needed`: the
    descriptors that steps use and close.
    """
    resources: SnapshotResources | None = None
    try:
        _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)
        if jail.folder:
            _signal.signal(_signal.SIGTERM, _signal.SIG_DFL)
            _signal.pthread_sigmask(_signal.SIG_UNBLOCK, [_signal.SIGTERM])
        elif jail.home:
            os.environ["HOME"] = jail.home
            os.environ["TMPDIR"] = files.temporary_path(jail)
            os.environ[SHARED] = shared_in(os.environ["TMPDIR"])
            have_files_in(jail.home, os.environ["TMPDIR"])
        moved = _moved_up(worker_fd)
        own = {*reserved_descriptors.STREAMS, control_fd, moved}
        jail.descriptors = own | {*limiter_of(jail), *needed}
        if rollback is not None:
            jail.descriptors.add(rollback.worker_end)
        contain(jail, steps)
        if rollback is not None:
            resources = rollback.resources()
            if jail.home:
                resources.protection(os.path.dirname(jail.home))()
        # The worker's report on its isolation, before any code of the session runs and could forge
        # it.
        os.write(control_fd, control.findings(jail.findings))
        os.close(control_fd)
        if jail.folder:
            _use_folder(jail, template)
    # Boundary: the host must get the error, and no other code here can send it.
    except Exception as error:  # noqa: BLE001
        report(control_fd, jail.tier, "worker", error)
        os._exit(1)
    try:
        template.serve(moved, table, resources)
    # Boundary: the session ends with its worker, which can only write to its standard error.
    except Exception as error:  # noqa: BLE001
        complain(error)
    finally:
        os._exit(1)


def _moved_up(worker_fd: int) -> int:
    """Return a descriptor of the worker's socket with a reserved number."""
    if worker_fd == reserved_descriptors.WORKER:
        return worker_fd
    return fcntl.fcntl(worker_fd, fcntl.F_DUPFD_CLOEXEC, reserved_descriptors.WORKER)


def _use_folder(jail: Jail, template: Worker) -> None:
    """Have the worker take the workspace from the session's directory, which has no mounts."""
    workspace = files.workspace_path(jail)
    if jail.tier == "process":
        assume_no_jail()
    else:
        have_files_in(workspace, files.temporary_path(jail))
    show_files_below(workspace)
    template.import_from(workspace)


def complain(error: Exception) -> None:
    """Write to the session's standard error why its worker ends."""
    os.write(2, f"the session's worker failed: {type(error).__name__}: {error}\n".encode())


def limiter_of(jail: Jail) -> tuple[int, ...]:
    """The descriptor of the fork limiter of its workers, if they have one."""
    return () if jail.forks is None else (jail.forks.limiter.fileno(),)


def report(control_fd: int, tier: str, role: str, error: Exception) -> None:
    """Report to the host which step of `role` failed."""
    if not isinstance(error, IsolationError):
        error = IsolationError(tier, role, f"{type(error).__name__}: {error}")
    control.send(control.open_end(control_fd), control.failure(error))


# `Init`: the init process of a session: trusted, small, alive as long as the session.
#
# It starts the workers, which build the jail around themselves, reaps the session's processes,
# and does for the host what only it can do inside: interrupt, kill, start the next worker. It
# parses nothing but the host's control messages. In tier `jailed` it is pid 1, and when it ends,
# the kernel ends the session. In other tiers it does that itself, and removes the session's
# directory.

# Milliseconds between checks whether a worker to be killed has made its snapshot: for so long it
# may do work that no process waits for.
_CHECK_INTERVAL = 2

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
        table: SnapshotTable,
        rollback: WorkerRollback | None,
    ) -> None:
        self._template = template
        self._folder = jail.folder
        self._branches = [SessionBranch(self, jail, control_fd, worker, table, rollback)]
        self._branch_numbers = itertools.count(1)
        self._wake_read, wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        self._ending = False
        if jail.folder:
            _signal.signal(_signal.SIGTERM, self._note_end)
            _signal.pthread_sigmask(_signal.SIG_UNBLOCK, [_signal.SIGTERM])

    def _note_end(self, number: int, frame: object) -> None:
        self._ending = True

    def serve(self) -> NoReturn:
        """Handle commands and reap children, until the host has closed every control socket."""
        poller, branches = self.poller(), self._branches
        while True:
            # First, because the first worker may have died before SIGCHLD could wake this process.
            self.reap()
            if self._ending:
                self._end()
            if branches is not self._branches:
                poller, branches = self.poller(), self._branches
            ready = poller.poll(
                _CHECK_INTERVAL if any(branch.is_ending for branch in branches) else None
            )
            self.handle_input({fd for fd, _ in ready})

    def handle_input(self, ready: set[int]) -> None:
        """Handle input on the descriptors that are ready."""
        self._drain()
        for branch in self._branches:
            if branch.rollback is not None:
                branch.rollback.handle_input(ready)
            if branch.control_fd in ready:
                branch.handle_command()
            if branch.is_ending:
                branch.end_worker()

    def poller(self) -> select.poll:
        """The poller of all descriptors with input."""
        poller = select.poll()
        poller.register(self._wake_read, select.POLLIN)
        for branch in self._branches:
            poller.register(branch.control_fd, select.POLLIN)
            if branch.rollback is not None:
                branch.rollback.files.listen(poller)
        return poller

    def close(self) -> None:
        """Release the poller's descriptors, in an init that does not serve."""
        for fd in (self._wake_read, signal.set_wakeup_fd(-1)):
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
            os.read(self._wake_read, 4096)
        except BlockingIOError:
            pass

    def reap(self) -> None:
        """Reap dead children; a branch whose worker is among them is notified."""
        while pid := _first_dead():
            branch = next((branch for branch in self._branches if branch.worker == pid), None)
            if branch is not None:
                _, status, usage = os.wait4(pid, 0)
                branch.died(status, usage.ru_utime + usage.ru_stime)
                continue
            # wait4 allocates much more than the wait itself: after each cell a snapshot ends.
            os.waitpid(pid, 0)
            for branch in self._branches:
                if branch.rollback is not None:
                    branch.rollback.trusted.discard(pid)

    @property
    def branches(self) -> Sequence[SessionBranch]:
        """All branches of the session."""
        return self._branches

    def fork(self) -> int:
        """Fork; 0 in the child, which does not handle init's signals."""
        pid = forks.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
        return pid

    def become_worker(self, branch: SessionBranch, fd: int) -> NoReturn:
        """Be the next worker of `branch`, on socket `fd`."""
        if branch.streams is not None:
            os.dup2(branch.streams.stdout, 1)
            os.dup2(branch.streams.stderr, 2)
        steps = RECIPES[branch.jail.tier].worker
        fds = branch.control_fd, fd
        run_worker(branch.jail, steps, *fds, self._template, branch.table, branch.rollback)

    # ── branches ──────────────────────────────────────────────────────────────────────────────

    def make_branch(
        self, branch: SessionBranch, message: control.Message, descriptors: Sequence[int]
    ) -> bool:
        """Have the worker of `branch` fork a branch; return whether it did.

        `descriptors`: the branch's control socket, worker socket, stdout, stderr, snapshot table.
        """
        control_fd, worker, stdout, stderr, table = descriptors
        place = branch.directory(next(self._branch_numbers))
        forked = None
        if branch.rollback is not None:
            forked = branch.rollback.fork_branch(
                branch.worker, message["seed"], place, descriptors[1:]
            )
        for fd in (worker, table):
            os.close(fd)
        if forked is not None:
            pid, rollback = forked
            # The worker's report, which code may have forged: no process belongs to two branches.
            if not any(pid in other.roots | other.snapshot_pids() for other in self._branches):
                streams = BranchStreams(stdout, stderr)
                made = SessionBranch(
                    self, rollback.jail, control_fd, pid, rollback.table, rollback, streams
                )
                self._set_branches([*self._branches, made])
                return True
            rollback.close()
        for fd in (control_fd, stdout, stderr):
            os.close(fd)
        return False

    def leave(self, branch: SessionBranch) -> None:
        """Handle the end of the host's connection to `branch`; the last one ends the session."""
        if len(self._branches) == 1:
            self._end()
        if branch.streams is None:
            # The original branch stands for the session, and owns the processes of no branch.
            branch.kill_all()
            branch.worker = 0
            branch.disconnect()
        else:
            branch.close()
        self._set_branches([other for other in self._branches if other is not branch])

    def _set_branches(self, branches: list[SessionBranch]) -> None:
        """Update the scope of "all processes", which depends on the number of branches."""
        self._branches = branches
        for branch in branches:
            if branch.rollback is not None:
                alone = len(branches) == 1 and branch.streams is None
                branch.rollback.members = None if alone else partial(self._members, branch)

    def _members(self, branch: SessionBranch) -> list[int]:
        """The living processes of `branch`, its snapshots among them.

        Processes of no branch belong to the original branch, and to no branch once that is gone.
        """
        trusted = {pid for each in self._branches if each.rollback for pid in each.rollback.trusted}
        return members(
            {
                id(each): each.roots | each.snapshot_pids()
                for each in self._branches
                if each.streams
            },
            id(branch) if branch.streams else None,
            trusted,
        )


def _first_dead() -> int:
    """The child to reap next, 0 if there is none; allocates nothing in that case."""
    try:
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return 0
    return 0 if ended is None else ended.si_pid
