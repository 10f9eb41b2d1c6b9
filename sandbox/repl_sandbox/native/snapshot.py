"""Forks of a worker that wait without running Python: snapshot.c with what it is told."""

from __future__ import annotations

import ctypes
import os
from functools import cache
from typing import TypeAlias

from . import library
from .spawn import Pollfd, thread_id_at

# What a worker does after the fork, until its host has said something, without Python: see
# `worker.copies.Rest`.
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
        """`wakes`: the signal that a copy waits for."""
        self._rest = _Rest(host=Pollfd.of(-1))
        self._rest_at = ctypes.addressof(self._rest)
        self._snapshot = _Snapshot(0, wakes, thread_id_at(), None)
        self._at = ctypes.addressof(self._snapshot)
        self._fork = library.load().function("fork_snapshot", ctypes.c_long, ctypes.c_void_p)

    def __call__(self, closed: int, rest: Rest | None = None) -> int:
        """Fork: the copy's process id; 0 in the copy, once it is woken.

        The copy is the caller's sibling. It closes all descriptors from `closed` on, then leads a
        process group, and then waits. The caller has one thread and has blocked all signals, which
        so are the copy's.

        Raises:
            OSError: there is no room for another process.
        """
        self.prepare(closed, rest)
        pid: int = self._fork(self._at)
        if pid < 0:
            raise OSError(-pid, f"clone: {os.strerror(-pid)}")
        return pid

    def prepare(self, closed: int, rest: Rest | None = None) -> None:
        """Do what a fork does before it; of use to who rehearses."""
        self._snapshot.closed = closed
        self._snapshot.rest = None if rest is None else self._rest_at
        if rest is not None:
            told = self._rest
            told.host.fd, told.child, (told.half, told.chosen), told.ended, told.mask = rest


@cache
def prepare(wakes: int) -> SnapshotFork:
    """That of this process, made when it is asked for first."""
    return SnapshotFork(wakes)
