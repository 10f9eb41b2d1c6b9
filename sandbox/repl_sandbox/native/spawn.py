"""Spawn of sessions: the binding of spawn.c, and the role of each process that returns from it."""

from __future__ import annotations

import ctypes
import os
import select
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from typing import Any, Final

from . import library
from .steps import Failure, Slot, SyscallBatch, Table

NO_CGROUP: Final = -1
_MAX_AWAITED: Final = 4
_PR_GET_TID_ADDRESS: Final = 40  # prctl(2)


class Role(IntEnum):
    """The process that returns from a spawn."""

    ZYGOTE = 0
    INIT = 1
    WORKER = 2


class Pollfd(ctypes.Structure):
    """struct pollfd of poll(2)."""

    _fields_ = (("fd", ctypes.c_int), ("events", ctypes.c_short), ("found", ctypes.c_short))

    @classmethod
    def of(cls, fd: int) -> Pollfd:
        """Return an entry for input on `fd`."""
        return cls(fd, select.POLLIN)


class _Text(ctypes.Structure):
    _fields_ = (("start", ctypes.c_char_p), ("size", ctypes.c_long))

    @classmethod
    def of(cls, text: bytes) -> _Text:
        return cls(text, len(text))


class _Spawn(ctypes.Structure):
    """spawn.h, struct spawn."""

    _fields_ = (
        ("flags", ctypes.c_uint64),
        ("cgroup", ctypes.c_long),
        ("thread_id", ctypes.c_void_p),
        ("fork", ctypes.c_void_p),
        ("error", ctypes.c_void_p),
        ("role", ctypes.c_long),
        ("worker", ctypes.c_long),
        ("spawn_steps", Table),
        ("init", Table),
        ("first_worker", Table),
        ("awaited_count", ctypes.c_long),
        ("awaited", Pollfd * _MAX_AWAITED),
        ("worker_mask", ctypes.c_uint64),
        ("control", ctypes.c_long),
        ("host", Pollfd),
        ("trial", ctypes.c_long),
        ("report", _Text),
        ("report_untried", _Text),
        ("ready", _Text),
    )


@dataclass(frozen=True, slots=True)
class Handshake:
    """Report of a contained first worker, and the socket that it then polls.

    `report` goes to `control`, which is closed; `report_untried` does if slot `trial` is not 0.
    """

    control: int
    host: int
    trial: Slot
    report: bytes
    report_untried: bytes
    ready: bytes


class Spawner:
    """Spawns one session after the other by the same three batches.

    In init, `worker` is the process id of the first worker.
    """

    def __init__(
        self,
        spawn_steps: SyscallBatch,
        init: SyscallBatch,
        first_worker: SyscallBatch,
        *,
        awaited: Sequence[int],
        worker_mask: int,
        handshake: Handshake | None,
    ) -> None:
        """Prepare spawns.

        `awaited`: descriptors on which init waits for input; none: init returns at once.
        `worker_mask`: the signals blocked in a first worker. Without a `handshake`, the worker
        returns after its batch.
        """
        self._batches = spawn_steps, init, first_worker
        spawn = self._spawn = _Spawn(thread_id=thread_id_at(), error=errno_at(), fork=_fork_at())
        spawn.spawn_steps, spawn.init, spawn.first_worker = (each.table for each in self._batches)
        spawn.awaited_count = len(awaited)
        for index, fd in enumerate(awaited):
            spawn.awaited[index] = Pollfd.of(fd)
        spawn.worker_mask = worker_mask
        spawn.host.fd = -1
        if handshake is not None:
            spawn.control, spawn.host = handshake.control, Pollfd.of(handshake.host)
            spawn.trial, spawn.ready = handshake.trial, _Text.of(handshake.ready)
            spawn.report = _Text.of(handshake.report)
            spawn.report_untried = _Text.of(handshake.report_untried)

    def spawn(self, flags: int, cgroup: int = NO_CGROUP) -> int:
        """clone(2) of a session: the process id of its init, 0 in the session's processes.

        `flags`: of new namespaces. `cgroup`: descriptor of the cgroup of version 2 to be born into.

        Raises:
            OSError: as of clone(2) or clone3(2).
        """
        spawn = self._spawn
        spawn.flags, spawn.cgroup = flags, cgroup
        return checked(_spawn_session()(ctypes.byref(spawn)), "clone")

    @property
    def role(self) -> Role:
        """The role of this process."""
        return Role(self._spawn.role)

    @property
    def worker(self) -> int:
        """In init: the process id of the first worker."""
        return int(self._spawn.worker)

    def check(self) -> None:
        """In a session's process: check that none of its steps has failed.

        Raises:
            StepError: the failed step.
        """
        spawn, (spawn_steps, init, first_worker) = self._spawn, self._batches
        own = (first_worker, spawn.first_worker) if self.role == Role.WORKER else (init, spawn.init)
        for batch, table in ((spawn_steps, spawn.spawn_steps), own):
            failure: Failure = table.failure
            if failure.name is not None:
                raise batch.error(failure)


def fork_process(flags: int = 0, cgroup: int = NO_CGROUP) -> int:
    """clone(2) as a fork of a process with one thread: like `Spawner.spawn`, without steps.

    No hooks of CPython and no handlers of the C library run. The GIL stays with the caller.
    """
    return checked(_fork_process()(flags, cgroup, thread_id_at()), "clone")


def checked(result: int, call: str) -> int:
    """Return `result`; OSError if it is a negative errno, a failure of `call`."""
    if result < 0:
        raise OSError(-result, f"{call}: {os.strerror(-result)}")
    return result


@cache
def thread_id_at() -> int:
    """Return the address of the main thread's id in the C library; 0 if unknown.

    glibc makes the kernel clear that word when the thread ends, so the kernel knows the address
    (prctl(2)). In musl that word is a lock.
    """
    address = ctypes.c_void_p()
    refused = ctypes.CDLL(None).prctl(_PR_GET_TID_ADDRESS, ctypes.byref(address), 0, 0, 0)
    if refused or not address.value:
        return 0
    return address.value if ctypes.c_int.from_address(address.value).value == os.getpid() else 0


@cache
def errno_at() -> int:
    """Return the address of this thread's errno in the C library."""
    function = ctypes.PyDLL(None)["__errno_location"]
    function.restype = ctypes.c_void_p
    address: int = function()
    return address


@cache
def _fork_at() -> int:
    return ctypes.cast(ctypes.PyDLL(None)["fork"], ctypes.c_void_p).value or 0


@cache
def _spawn_session() -> Any:
    return library.load().function("spawn_session", ctypes.c_long, ctypes.c_void_p)


@cache
def _fork_process() -> Any:
    arguments = ctypes.c_uint64, ctypes.c_int, ctypes.c_void_p
    return library.load().function("fork_process", ctypes.c_long, *arguments)
