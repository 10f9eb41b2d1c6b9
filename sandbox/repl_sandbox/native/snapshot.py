"""Forks of a worker that wait without running Python: the binding of snapshot.c."""

from __future__ import annotations

import ctypes
import os
from functools import cache
from typing import TypeAlias

from . import library
from .spawn import Pollfd, thread_id_at

# Work of a worker after the fork, without Python, until its host sends a command: see
# `snapshots.snapshot_resources.PostForkWork`.
Work: TypeAlias = tuple[int, int, tuple[int, int], int, int]


class _Work(ctypes.Structure):
    """snapshot.c, struct post_fork_work."""

    _fields_ = (
        ("child", ctypes.c_void_p),
        ("half", ctypes.c_void_p),
        ("valid_half", ctypes.c_ubyte),
        ("ended", ctypes.c_int),
        ("mask", ctypes.c_uint64),
        ("host", Pollfd),
    )


class _Snapshot(ctypes.Structure):
    """snapshot.c, struct snapshot."""

    _fields_ = (
        ("first_closed", ctypes.c_int),
        ("wake_signal", ctypes.c_int),
        ("thread_id", ctypes.c_void_p),
        ("work", ctypes.c_void_p),
    )


class SnapshotFork:
    """Laid out once, in a template, for all processes that are forked from it."""

    def __init__(self, wake_signal: int) -> None:
        """`wake_signal`: the signal that a snapshot waits for."""
        self._work = _Work(host=Pollfd.of(-1))
        self._work_at = ctypes.addressof(self._work)
        self._snapshot = _Snapshot(0, wake_signal, thread_id_at(), None)
        self._at = ctypes.addressof(self._snapshot)
        self._fork = library.load().function("fork_snapshot", ctypes.c_long, ctypes.c_void_p)

    def __call__(self, first_closed: int, work: Work | None = None) -> int:
        """Fork: return the snapshot's process id; 0 in the snapshot, once it is activated.

        The snapshot is the caller's sibling. It closes all descriptors from `first_closed` on, then
        leads a process group, and then waits. The caller has one thread and has blocked all
        signals, so they are blocked in the snapshot.

        Raises:
            OSError: there is no room for another process.
        """
        self.prepare(first_closed, work)
        pid: int = self._fork(self._at)
        if pid < 0:
            raise OSError(-pid, f"clone: {os.strerror(-pid)}")
        return pid

    def prepare(self, first_closed: int, work: Work | None = None) -> None:
        """Do the preparations of a fork in advance, for warm-up."""
        self._snapshot.first_closed = first_closed
        self._snapshot.work = None if work is None else self._work_at
        if work is not None:
            fields = self._work
            fields.host.fd, fields.child, (fields.half, fields.valid_half), fields.ended, mask = (
                work
            )
            fields.mask = mask


@cache
def prepare(wake_signal: int) -> SnapshotFork:
    """Return the object of this process, made on first use."""
    return SnapshotFork(wake_signal)
