"""Resource limits of one process and its children, as setrlimit(2) has them.

Covers: data segment, processes, open files, file size, CPU seconds, core files, locked memory,
timers and queued signals.
Does not cover: the sum over processes (watchdog, cgroup), tmpfs sizes (mounts).
"""

from __future__ import annotations

import os
import resource
import struct
from errno import EINVAL, EPERM

from ..native import process_forks
from ..native.libc import call
from ..native.steps import Rows

# Names as in setrlimit(2); 0 for what a session has no use for.
_NONE = {"MSGQUEUE": 0, "NICE": 0, "RTPRIO": 0, "MEMLOCK": 0}
# No core file, which would be below a page, and none for a pipe either: where core_pattern is a
# pipe to a program of the host, 0 starts that program as root, and only 1 does not (core(5)).
_CORE = {"CORE": 1}
# Timers and queued signals, which the kernel counts by user: an ordinary user's session could take
# all that the host's own programs may have.
_SIGNALS = {"SIGPENDING": 4096}
# CPython's own recursion limit stays well inside this, and threads take it from address space.
_STACK = {"STACK": 8 << 20}
# So many of the files that a process may open are for a worker that takes over: its two sockets,
# and one to open files again with. The soft limit keeps code from taking these by accident.
SPARE_FILES = 3


def room() -> int:
    """A limit of processes that a user who has others can live with, and a fork bomb meets.

    The kernel counts all processes and threads of a user, on all of the machine and not only those
    that can be seen from here; there is no way to ask. So it is tried: the least power of two that
    a fork passes under, four times over.
    """
    most = _LEAST_ROOM
    while most < _MOST_ROOM and not _forks_under(most):
        most *= 2
    return 4 * most


def open_files(wanted: int, *, own_user: bool) -> int:
    """The limit of a session that wants so many; `own_user`: it has one that is not the host's.

    Of descriptors that are on their way through sockets the kernel lets a process send no more when
    its user has more than that process may open (unix(7), ETOOMANYREFS). Code that may open as many
    as the host would keep it, and each init, from sending any.
    """
    return wanted if own_user else min(wanted, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)


_LARGEST = (1 << 64) - 1
_LEAST_ROOM = 256
_MOST_ROOM = 1 << 20


def _forks_under(most: int) -> bool:
    """Whether a process of this user may fork under a limit of `most`; tried in a child."""
    child = process_forks.fork()
    if child == 0:
        try:
            resource.setrlimit(resource.RLIMIT_NPROC, (most, most))
            if process_forks.fork() == 0:
                os._exit(0)
        except (OSError, ValueError):
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def plan(limits: dict[str, int]) -> list[tuple[int, tuple[int, int]]]:
    """Arguments of setrlimit(2) for `limits` (names without RLIMIT_) and those all sessions have.

    CPU is soft at its value (SIGXCPU) and hard a second later (SIGKILL), NOFILE soft `SPARE_FILES`
    below its value; all others are both. None is above what this process may set.
    """
    rows = []
    for name, value in {**_NONE, **_CORE, **_SIGNALS, **_STACK, **limits}.items():
        number = getattr(resource, f"RLIMIT_{name}")
        _, hard = resource.getrlimit(number)
        most = value + 1 if name == "CPU" else value
        if hard != resource.RLIM_INFINITY:
            value, most = min(value, hard), min(most, hard)
        if name == "NOFILE":
            value -= SPARE_FILES
        rows.append((number, (value, most)))
    return rows


# What a kernel of the container's own need not have: the limits keep a user from taking what others
# of the system want, and that user is alone there.
_OF_SHARED_KERNELS = frozenset(
    getattr(resource, f"RLIMIT_{name}") for name in ("MSGQUEUE", "NICE", "RTPRIO", "SIGPENDING")
)


def apply_rows(rows: list[tuple[int, tuple[int, int]]], *, alone: bool = False) -> Rows:
    """Set what `plan` made; `alone`: but for limits that only a shared kernel needs and has."""
    for number, pair in rows:
        limit = struct.pack("=QQ", *map(_word, pair))
        tolerated = (EINVAL, EPERM) if alone and number in _OF_SHARED_KERNELS else ()
        yield call("prlimit64", 0, number, limit, 0, tolerated=tolerated)


def _word(value: int) -> int:
    """`value` as the kernel has it; RLIM_INFINITY is -1 in Python, and the largest word there."""
    word = _LARGEST if value == resource.RLIM_INFINITY else value
    if not 0 <= word <= _LARGEST:
        raise OSError(EINVAL, f"no resource limit can be {value}")
    return word
