"""`warm_up_init`: runs init's code in the template, so that no session is the first to run it.

For the reason of `worker_warmup`, and likewise with results that are dropped. Only code that leaves
this process unchanged can run, so no step of the jail.
"""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import socket
from collections.abc import Iterator
from dataclasses import replace
from errno import EAGAIN

from ...init.supervisor import Init
from ...init.worker_rollback import WorkerRollback
from ...jail.recipe.step_execution import contain
from ...jail.reserved_descriptors import MIN_FILES, WORKER
from ...jail.session_jail import Jail
from ...snapshots.branch_fork import BranchFork
from ...snapshots.snapshot_channel import SnapshotChannel
from ...snapshots.snapshot_messages import COMMAND
from ...snapshots.snapshot_table import SnapshotTable
from ...worker.main import Worker

# CPython 3.11 specialises at the 8th run, later versions earlier.
_RUNS = 16


def warm_up_init(jail: Jail, template: Worker) -> None:
    """Make inits without a session, as `SessionSpawn` does, and have them poll once.

    Also have its worker do what precedes a snapshot, and what a snapshot does when it is activated.
    `template`: a worker, of no use then.
    """
    gc.freeze()  # a snapshot that takes over searches all objects, of which none is its own here
    with _few_descriptors():
        for _ in range(_RUNS):
            _once(jail, template)
    gc.unfreeze()


def _once(jail: Jail, template: Worker) -> None:
    contain(jail, ())
    table = SnapshotTable()
    rollback = WorkerRollback(jail, WORKER, table, SnapshotChannel(WORKER))
    resources = replace(rollback.resources(), fork_beside=_no_fork)
    snapshots = BranchFork(resources, WORKER)
    if jail.tier == "jailed":  # else there is no workspace yet
        snapshots.warm_up(_open())
        _branch(snapshots, rollback, resources.workspace, template)
    _take_over(snapshots, rollback, template)
    control = os.eventfd(0)
    init = Init(jail, control, template, 0, table, rollback)
    init.handle_input({fd for fd, _ in init.poller().poll(0)})
    init.close()
    rollback.close()
    os.close(control)


def _branch(
    snapshots: BranchFork, rollback: WorkerRollback, workspace: str, worker: Worker
) -> None:
    """Have `worker` do everything for a branch but the fork, with an empty workspace."""
    place = os.fsencode(workspace)
    command = COMMAND.pack(os.getpid(), 0, -1, len(place)) + place
    rollback.channel.send_command(command, [0, 0, 0, 0, 0], wait=True)
    worker.warm_up_branch(snapshots)
    rollback.channel.next_message(0)


def _take_over(snapshots: BranchFork, rollback: WorkerRollback, worker: Worker) -> None:
    """Have `worker` take over as an activated snapshot does."""
    host, worker_end = socket.socketpair()
    rollback.channel.send_command(
        COMMAND.pack(os.getpid(), 0, -1, 0), [worker_end.fileno()], wait=True
    )
    worker_end.close()
    worker.warm_up_takeover(snapshots)
    host.close()


def _no_fork() -> int:
    raise OSError(EAGAIN, "a warm-up")


@contextlib.contextmanager
def _few_descriptors() -> Iterator[None]:
    """Lower the limit of descriptors as in a session: a snapshot's sockets have the highest
    numbers.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (MIN_FILES, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _open() -> list[int]:
    """The descriptors of this process, except the one by which they are found."""
    numbers = [int(name) for name in os.listdir("/proc/self/fd")]
    return [fd for fd in numbers if os.path.exists(f"/proc/self/fd/{fd}")]
