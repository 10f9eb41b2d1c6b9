"""Queries about processes and their files, by name: for sessions that only another process can see.

`query_here` answers them itself. The answers are JSON, so that another process can send them.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from ..jail import processes
from . import proc_memory

ProcessQuery: TypeAlias = Callable[..., Any]

# In the order in which they are reported.
NAMESPACES: Final = ("user", "pid", "mnt", "net", "ipc", "uts", "cgroup")
# Rows of /proc/PID/status, proc_pid_status(5): a few of some sixty, read for every session.
_FIELD = re.compile(r"^(Uid|NSpid|Cap\w+|NoNewPrivs|Seccomp|Seccomp_filters):\t(.*)$", re.MULTILINE)


def namespace(pid: int | str, name: str) -> str:
    """A namespace of a process: its name and number, as proc_pid_ns(5) has them."""
    return os.readlink(f"/proc/{pid}/ns/{name}")


def status(pid: int | str) -> dict[str, str]:
    """The users, capabilities and filters of a process, as the kernel writes them."""
    return dict(_FIELD.findall(read(pid, "status")))


def read(pid: int | str, name: str) -> str:
    """A file of a process in /proc; unbuffered, because each is read once and in one piece."""
    with open(f"/proc/{pid}/{name}", "rb", buffering=0) as file:
        return file.read().decode("utf-8", "replace")


def _is_read_only(pid: int) -> bool:
    # Flags of the file system and of the mount: each can be read-only by itself, statvfs(3).
    return bool(os.statvfs(f"/proc/{pid}/root").f_flag & os.ST_RDONLY)


def _parent(pid: int) -> int:
    """proc(5), the second field behind the name in parentheses."""
    return int(read(pid, "stat").rpartition(")")[2].split(None, 2)[1])


def _cpu_clock(pid: int) -> float:
    return time.clock_gettime(process_cpu(pid))


def process_cpu(pid: int) -> int:
    """The clock id of the CPU time of process `pid`, for `time.clock_gettime`.

    As clock_getcpuclockid(3) makes it: the complement of the pid in the upper bits, and
    CPUCLOCK_SCHED (2) in the lower three.
    """
    return (~pid << 3) | 2


def _kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def _running(pids: Sequence[int]) -> int:
    return processes.threads(filter(proc_memory.runs, pids))


TABLE: Final[Mapping[str, ProcessQuery]] = {
    "shared_with_others": proc_memory.shared_with_others,
    "snapshots": lambda init, pids, most: sorted(proc_memory.snapshots(init, pids, most)),
    "cpu_clock": _cpu_clock,
    "cpu_seconds": processes.cpu_seconds,
    "descendants": lambda pid: list(processes.descendants(pid)),
    "is_read_only": _is_read_only,
    "kill": _kill,
    "namespace": namespace,
    "parent": _parent,
    "private": proc_memory.private,
    "proportional": proc_memory.proportional,
    "read": read,
    "resident": proc_memory.resident,
    "running": _running,
    "runs": proc_memory.runs,
    "status": status,
    "threads": processes.threads,
    "use": proc_memory.use,
}


def query_here(name: str, *arguments: Any) -> Any:
    """Answer a query about a process that this one can see; OSError if it cannot."""
    return TABLE[name](*arguments)
