"""Resource limits of one process and its children: setrlimit(2).

Covers: data segment, processes, open files, file size, CPU seconds, core files, locked memory,
timers and queued signals. Does not cover: the sum over processes (watchdog, cgroup), tmpfs sizes
(mounts).
"""

from __future__ import annotations

import os
import resource
import struct
from errno import EINVAL, EPERM

from ..native import forks
from ..native.libc import call
from ..native.library import Rows

# Names as in setrlimit(2); 0 for resources that a session does not need.
_NONE = {"MSGQUEUE": 0, "NICE": 0, "RTPRIO": 0, "MEMLOCK": 0}
# No core file, which would be below a page, and no pipe either: where core_pattern names a program
# of the host, 0 starts that program as root, and only 1 does not (core(5)).
_CORE = {"CORE": 1}
# Timers and queued signals, which the kernel counts by user: an ordinary user's session could use
# up all that the user's own programs may have.
_SIGNALS = {"SIGPENDING": 4096}
# CPython's own recursion limit stays well inside this, and threads take it from address space. Code
# may raise it as far as the host could, as programs with deep recursion do first of all: a stack's
# pages are memory of the session like others.
_STACK = {"STACK": 8 << 20}
# Descriptors reserved for a worker that takes over: its two sockets, and one to reopen files. The
# soft limit keeps code from using them by accident.
SPARE_FILES = 3


def process_limit() -> int:
    """Return a limit of processes that leaves a user's other programs room and stops a fork bomb.

    The kernel counts all processes and threads of a user on the machine, including invisible ones,
    and does not report the count. So this is tried: the least power of two under which a fork
    succeeds, times four.
    """
    limit = _MIN_PROCESSES
    while limit < _MAX_PROCESSES and not _forks_under(limit):
        limit *= 2
    return 4 * limit


def open_files(requested: int, *, own_user: bool) -> int:
    """Return the limit of descriptors of a session; `own_user`: its user is not the host's.

    If a user has more descriptors on their way through sockets than a process may open, that
    process can send no more (unix(7), ETOOMANYREFS). Code with the host's limit could keep the
    host, and each init, from sending any.
    """
    if own_user:
        return requested
    return min(requested, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)


_LARGEST = (1 << 64) - 1
_MIN_PROCESSES = 256
_MAX_PROCESSES = 1 << 20


def _forks_under(limit: int) -> bool:
    """Return whether a process of this user may fork under a limit of `limit`; tried in a child."""
    child = forks.fork()
    if child == 0:
        try:
            resource.setrlimit(resource.RLIMIT_NPROC, (limit, limit))
            if forks.fork() == 0:
                os._exit(0)
        except (OSError, ValueError):
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def plan(limits: dict[str, int]) -> list[tuple[int, tuple[int, int]]]:
    """Return arguments of setrlimit(2) for `limits` (without RLIMIT_) and the constant limits.

    CPU is soft at its value (SIGXCPU) and hard a second later (SIGKILL), NOFILE soft `SPARE_FILES`
    below its value, STACK soft only; for all others both are equal. None exceeds the limits of this
    process.
    """
    rows = []
    for name, value in {**_NONE, **_CORE, **_SIGNALS, **_STACK, **limits}.items():
        number = getattr(resource, f"RLIMIT_{name}")
        _, hard = resource.getrlimit(number)
        ceiling = value + 1 if name == "CPU" else value
        if hard != resource.RLIM_INFINITY:
            value, ceiling = min(value, hard), min(ceiling, hard)
        if name == "NOFILE":
            value -= SPARE_FILES
        if name == "STACK":
            ceiling = hard
        rows.append((number, (value, ceiling)))
    return rows


# A container's own kernel may lack these: they protect other users of a system, and the user of
# such a container is alone.
_OF_SHARED_KERNELS = frozenset(
    getattr(resource, f"RLIMIT_{name}") for name in ("MSGQUEUE", "NICE", "RTPRIO", "SIGPENDING")
)


def apply_rows(rows: list[tuple[int, tuple[int, int]]], *, alone: bool = False) -> Rows:
    """Return the rows that set the limits of `plan`; with `alone`, without `_OF_SHARED_KERNELS`."""
    for number, pair in rows:
        limit = struct.pack("=QQ", *map(_word, pair))
        tolerated = (EINVAL, EPERM) if alone and number in _OF_SHARED_KERNELS else ()
        yield call("prlimit64", 0, number, limit, 0, tolerated=tolerated)


def _word(value: int) -> int:
    """Return `value` as the kernel's word: RLIM_INFINITY, -1 in Python, is the largest."""
    word = _LARGEST if value == resource.RLIM_INFINITY else value
    if not 0 <= word <= _LARGEST:
        raise OSError(EINVAL, f"no resource limit can be {value}")
    return word
