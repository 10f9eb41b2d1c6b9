"""Values that a worker and its snapshots pass on: resources, work after a fork, a takeover."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from .lost_resources import LostResources
from .snapshot_table import SnapshotTable

if TYPE_CHECKING:
    from ..native.snapshot import SnapshotFork


class PostForkWork(NamedTuple):
    """The actions of a worker after a fork, until its host has sent something.

    They run without Python, in `native.snapshot`.

    Attributes:
        host: The descriptor of the socket to its host.
        child: The address of 4 bytes for the snapshot's process id.
        half: The address and the value of the byte that is written then.
        ended: The process that is killed then; 0 for none.
        blocked: The signals that are blocked meanwhile, one bit for each from the first on.
    """

    host: int
    child: int
    half: tuple[int, int]
    ended: int
    blocked: int


@dataclass(frozen=True, slots=True)
class SnapshotResources:
    """The resources of a session's snapshots, made by its init before the first worker.

    `init_socket` connects the worker and the snapshots with init. `history` is the number of
    snapshots besides the current one. The files of `workspace` belong to a snapshot. The
    forks are those of `native.process_forks`; `snapshot_fork` makes most snapshots. A process that
    takes over may use `spare_files` more descriptors than code.
    """

    table: SnapshotTable
    init_socket: socket.socket
    history: int
    workspace: str
    fork_beside: Callable[[], int]
    fork_beside_threads: Callable[[], int]
    snapshot_fork: SnapshotFork
    spare_files: int = 0


@dataclass(frozen=True, slots=True)
class Takeover:
    """The facts for a snapshot, or a branch, that becomes a worker.

    Attributes:
        worker: The descriptor of the socket to its host.
        cell: The cell after which the snapshot was made.
        lost: The resources that it lacks.
        cpu_left: CPU seconds that the session may still use; 0 if they are not limited.
        workspaces: Of a branch: the workspace that it leaves, and its own.
        seed: Of a branch: the seed of its random numbers; None to continue.
        shared: Names of memory that is shared with other processes; None if not known yet.
        announced: True if the host has the first message already, and the files were copied.
    """

    worker: int
    cell: int
    lost: LostResources
    cpu_left: int
    workspaces: tuple[str, str] | None = None
    seed: int | None = None
    shared: list[str] | None = None
    announced: bool = False
