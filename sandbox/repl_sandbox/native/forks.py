"""Forks and spawns by the native core: of sessions, of waiting snapshots, and beside threads."""

from __future__ import annotations

import ctypes
import errno
import os
import select
from _signal import SIGCHLD, SIGKILL  # plain numbers, unlike those of the public module
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from typing import Any, Final, TypeAlias

from . import library
from .libc import CLONE_PARENT, check
from .library import BatchStructure, Failure, Slot, SyscallBatch

# Spawn of sessions: the binding of spawn.c, and the role of each process that returns from it.

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
        ("spawn_steps", BatchStructure),
        ("init", BatchStructure),
        ("first_worker", BatchStructure),
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


# Forks that the standard library lacks: without hooks, or as a sibling of the caller.
#
# CPython's `os.fork` runs the hooks of `os.register_at_fork`, and makes children only.

# Bytes; more than struct sigaction has in any C library.
_SIGACTION_SIZE: Final = 256
# Waits of this many milliseconds in which a fork of a fork is made, also of gigabytes. Several and
# not one: if this process is not scheduled for seconds, the other may not be either, and that
# counts once.
_WAIT_BETWEEN: Final = 200
_MAX_WAITS: Final = 10

# PyDLL keeps the GIL held: a fork through it leaves the child with the interpreter's lock.
_libc_with_gil = ctypes.PyDLL(None, use_errno=True)
# Looked up once, here: in a forked process the search through all libraries copies some 60 pages.
_fork = _libc_with_gil.fork


def fork() -> int:
    """fork(3) for a process with one thread, without CPython's hooks.

    The hooks repair state that other threads may hold; there are none, and running the hooks costs
    half a millisecond of copied pages. The GIL stays with the caller, whose thread keeps its
    identity in the child.
    """
    return check(_fork(), "fork")


def fork_beside() -> int:
    """clone(2) as a fork whose child is the caller's sibling; 0 in the child.

    Its parent is the caller's parent, which reaps it: the caller's own waits never see it. For a
    process with one thread, as `fork`.
    """
    return fork_process(CLONE_PARENT)


def makes_siblings() -> bool:
    """Return whether `fork_beside` makes siblings: a kernel may accept the flag and make children.

    Tried; this process must have no child whose end it must learn of.
    """
    between = fork()
    if between == 0:
        other = fork_beside()
        if other == 0:
            os._exit(0)
        try:
            os.waitpid(other, 0)
        except ChildProcessError:
            os._exit(0)
        os._exit(1)
    if os.waitstatus_to_exitcode(os.waitpid(between, 0)[1]):
        return False
    os.wait()
    return True


def fork_beside_threads() -> int:
    """`fork_beside` for a process with other threads; the child has the caller's thread alone.

    fork(3) and CPython's hooks, those of os.register_at_fork among them, repair state of the C
    library and of CPython that these threads hold. fork(3) makes only children, so an intermediate
    child forks the final one and ends: the session's init adopts the orphan. No handler in any
    thread learns of the end of the intermediate child.
    """
    handled = ctypes.create_string_buffer(_SIGACTION_SIZE)
    quiet = ctypes.create_string_buffer(_SIGACTION_SIZE)  # all zero: SIG_DFL
    _libc_with_gil.sigaction(SIGCHLD, quiet, handled)
    had_ended = _has_ended()
    try:
        pid = _fork_by_another()
    finally:
        _libc_with_gil.sigaction(SIGCHLD, handled, None)
    if pid and not had_ended and _has_ended():
        os.kill(os.getpid(), SIGCHLD)  # for a child of the code whose signal was suppressed
    return pid


def _has_ended() -> bool:
    """Return whether a child waits to be reaped."""
    try:
        return os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return False


def _fork_by_another() -> int:
    reading, writing = os.pipe2(os.O_CLOEXEC)
    between = _fork_with_hooks()
    if between == 0:
        child = _fork()
        if child == 0:
            os.close(reading)
            os.close(writing)
            return 0
        os.write(writing, str(child).encode())
        os._exit(0)
    os.close(writing)
    try:
        checked(between, "fork")
        answer = _reported(reading)
        if answer is None:
            # Blocked by a hook of session code, or by a lock of a C library that a thread held.
            os.kill(between, SIGKILL)
        os.waitpid(between, 0)
    finally:
        os.close(reading)
    if answer is None or answer == -1:
        raise OSError(errno.EAGAIN, "fork: no room for a second fork, or the first one did not end")
    return answer


class _HookedFork(ctypes.Structure):
    """hooked_fork.c, struct hooked_fork."""

    _fields_ = tuple(
        (name, ctypes.c_void_p)
        for name in ("before", "fork", "after_in_child", "after_in_parent", "error")
    )


def _fork_with_hooks() -> int:
    """fork(3) and CPython's hooks; a negative errno if there is no child."""
    return int(_hooked_fork()(ctypes.byref(_hooks())))


@cache
def _hooked_fork() -> Any:
    return library.load().function("fork_with_hooks", ctypes.c_long, ctypes.c_void_p)


@cache
def _hooks() -> _HookedFork:
    functions = (
        ctypes.pythonapi.PyOS_BeforeFork,
        _fork,
        ctypes.pythonapi.PyOS_AfterFork_Child,
        ctypes.pythonapi.PyOS_AfterFork_Parent,
    )
    addresses = [ctypes.cast(function, ctypes.c_void_p) for function in functions]
    return _HookedFork(*addresses, errno_at())


def _reported(reading: int) -> int | None:
    """Return the number read from a pipe; None if none arrives in time."""
    poller = select.poll()
    poller.register(reading, select.POLLIN)
    for _ in range(_MAX_WAITS):
        if poller.poll(_WAIT_BETWEEN):
            return int(os.read(reading, 16) or b"-1")
    return None


# Forks of a worker that wait without running Python: the binding of snapshot.c.

# Work of a worker after the fork, without Python, until its host sends a command: see
# `PostForkWork` of `worker/snapshots.py`.
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
