"""Forks of a worker that wait without running Python: the binding of snapshot.c."""

from __future__ import annotations

import ctypes
import os
from functools import cache
from typing import TypeAlias

from . import library
from .spawn import Pollfd, thread_id_at

# Work of a worker after the fork, without Python, until its host sends a command: see
# `snapshots.snapshot_processes.SnapshotLeftover`.
Rest: TypeAlias = tuple[int, int, tuple[int, int], int, int]


class _Rest(ctypes.Structure):
    """snapshot.c, struct rest."""

    _fields_ = (
        ("child", ctypes.c_void_p),
        ("half", ctypes.c_void_p),
        ("chosen", ctypes.c_ubyte),
        ("ended", ctypes.c_int),
        ("mask", ctypes.c_uint64),
        ("host", Pollfd),
    )


class _Snapshot(ctypes.Structure):
    """snapshot.c, struct snapshot."""

    _fields_ = (
        ("closed", ctypes.c_int),
        ("wakes", ctypes.c_int),
        ("thread_id", ctypes.c_void_p),
        ("rest", ctypes.c_void_p),
    )


class SnapshotFork:
    """Laid out once, in a template, for all processes that are forked from it."""

    def __init__(self, wakes: int) -> None:
        """`wakes`: the signal that a snapshot waits for."""
        self._rest = _Rest(host=Pollfd.of(-1))
        self._rest_at = ctypes.addressof(self._rest)
        self._snapshot = _Snapshot(0, wakes, thread_id_at(), None)
        self._at = ctypes.addressof(self._snapshot)
        self._fork = library.load().function("fork_snapshot", ctypes.c_long, ctypes.c_void_p)

    def __call__(self, closed: int, rest: Rest | None = None) -> int:
        """Fork: return the snapshot's process id; 0 in the snapshot, once it is activated.

        The snapshot is the caller's sibling. It closes all descriptors from `closed` on, then leads
        a process group, and then waits. The caller has one thread and has blocked all signals, so
        they are blocked in the snapshot.

        Raises:
            OSError: there is no room for another process.
        """
        self.prepare(closed, rest)
        pid: int = self._fork(self._at)
        if pid < 0:
            raise OSError(-pid, f"clone: {os.strerror(-pid)}")
        return pid

    def prepare(self, closed: int, rest: Rest | None = None) -> None:
        """Do the preparations of a fork in advance, for warm-up."""
        self._snapshot.closed = closed
        self._snapshot.rest = None if rest is None else self._rest_at
        if rest is not None:
            told = self._rest
            told.host.fd, told.child, (told.half, told.chosen), told.ended, told.mask = rest


@cache
def prepare(wakes: int) -> SnapshotFork:
    """Return the object of this process, made on first use."""
    return SnapshotFork(wakes)
