"""`run_worker`: turns a process into a worker: it confines itself, reports its isolation, and
serves.

The first worker is a fork of the session's first process, each later one a fork of its init.
"""

from __future__ import annotations

import _signal  # the public module's enums are a hundred pages to copy in each session
import fcntl
import os
from collections.abc import Collection, Sequence
from typing import NoReturn

from ..errors import IsolationError
from ..jail import reserved_descriptors, session_directory
from ..jail.recipe.recipe_step import Step
from ..jail.recipe.step_execution import contain
from ..jail.session_jail import Jail
from ..protocol import control_channel
from ..snapshots.snapshot_resources import SnapshotResources
from ..snapshots.snapshot_table import SnapshotTable
from ..worker.display.error_hints import assume_no_jail
from ..worker.display.tracebacks import show_files_below
from ..worker.main import Worker
from .worker_rollback import WorkerRollback


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
        moved = _moved_up(worker_fd)
        own = {*reserved_descriptors.STREAMS, control_fd, moved}
        jail.descriptors = own | {*limiter_of(jail), *needed}
        if rollback is not None:
            jail.descriptors.add(rollback.worker_end)
        contain(jail, steps)
        if rollback is not None:
            resources = rollback.resources()
        # The worker's report on its isolation, before any code of the session runs and could forge
        # it.
        os.write(control_fd, control_channel.findings(jail.findings))
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
    if jail.tier == "process":
        assume_no_jail()
    workspace = jail.home or f"{jail.folder}/{session_directory.WORKSPACE}"
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
    control_channel.send(control_channel.open_end(control_fd), control_channel.failure(error))
