"""`CgroupInterface`: the files of a cgroup in version 1 and in version 2, and how to write them.

Covers: limits of memory without swap and of processes, events, usage, and CPU weight. Does not
cover: limits of CPU time.

Sources: Documentation/admin-guide/cgroup-v1/{memory,pids}.rst, cgroup-v2.rst and
Documentation/scheduler/sched-design-CFS.rst of the kernel.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final, TypeAlias

# The index of the folder in `CgroupRoot.folders`, and the file's name.
File: TypeAlias = "tuple[int, str]"


@dataclass(frozen=True, slots=True)
class CgroupInterface:
    """The files of one version."""

    version: int
    memory: str  # the limit, in the first folder
    swap: str  # there as well: version 1 limits swap together with memory, version 2 alone
    pids: File
    # Writing "0" to these, in the folders that exist, moves the writing process. None on version 2,
    # where a session is forked into its cgroup: there the write takes up to 25 ms, see
    # native.spawn.fork_process.
    join: tuple[File, ...]
    kills: File  # row oom_kill
    refusals: File  # row max
    members: File  # the number of processes and threads in it
    used: File  # all charged memory, including what the kernel can reclaim
    counted: tuple[bytes, ...]  # rows of memory.stat: memory of processes and tmpfs
    weight: File  # the share of a contended processor; only if cgroups are weighed
    ordinary: int  # the kernel's default
    low: int  # one hundredth of it, the ratio of nice 19 to nice 0


# `tasks`, not `cgroup.procs`: a thread that moves itself need not stop all forks of the machine
# meanwhile (cgroup_procs_write_start in kernel/cgroup/cgroup.c), and it is the only thread.
VERSION_1: Final = CgroupInterface(
    version=1,
    memory="memory.limit_in_bytes",
    swap="memory.memsw.limit_in_bytes",
    pids=(1, "pids.max"),
    join=((0, "tasks"), (1, "tasks"), (2, "tasks")),
    kills=(0, "memory.oom_control"),
    refusals=(1, "pids.events"),
    members=(1, "pids.current"),
    used=(0, "memory.usage_in_bytes"),
    counted=(b"rss", b"shmem"),
    weight=(2, "cpu.shares"),
    ordinary=1024,
    low=10,
)
VERSION_2: Final = CgroupInterface(
    version=2,
    memory="memory.max",
    swap="memory.swap.max",
    pids=(0, "pids.max"),
    join=(),
    kills=(0, "memory.events"),
    refusals=(0, "pids.events"),
    members=(0, "pids.current"),
    used=(0, "memory.current"),
    counted=(b"anon", b"shmem", b"pagetables"),
    weight=(0, "cpu.weight"),
    ordinary=100,
    low=1,
)
VERSIONS: Final = {1: VERSION_1, 2: VERSION_2}


def _read(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, 1 << 16)
    finally:
        os.close(fd)


def number(path: str) -> int:
    """The number in a file; -1 for "max"."""
    text = _read(path).strip()
    return -1 if text == b"max" else int(text)


def rows(path: str, *names: bytes) -> int:
    """The sum of the rows `names` of a file with rows "name number"."""
    total = 0
    for line in _read(path).splitlines():
        name, _, value = line.partition(b" ")
        if name in names:
            total += int(value)
    return total


def put(path: str, value: int | str) -> None:
    """Write `value` to an existing file; OSError names the file."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, str(value).encode())
        finally:
            os.close(fd)
    except OSError as error:
        raise OSError(error.errno, f"{path}: {error.strerror}") from error


def limit_memory(folder: str, files: CgroupInterface, size: int) -> None:
    """Limit the memory of a cgroup to `size` bytes, without swap."""
    memory, swap = f"{folder}/{files.memory}", f"{folder}/{files.swap}"
    together = files.version == 1
    if not os.path.exists(swap):
        # The kernel does not count swap of cgroups. Version 1 can be told not to use it.
        put(memory, size)
        if together:
            put(f"{folder}/memory.swappiness", 0)
    elif not together:
        put(swap, 0)
        put(memory, size)
    else:
        # The limit of memory and swap together may never be below that of memory.
        for path in (swap, memory) if number(swap) < size else (memory, swap):
            put(path, size)


def limits(folders: tuple[str, ...], files: CgroupInterface) -> tuple[int, int]:
    """The limits of memory and processes from the kernel; -1 for none."""
    folder, name = files.pids
    return number(f"{folders[0]}/{files.memory}"), number(f"{folders[folder]}/{name}")
