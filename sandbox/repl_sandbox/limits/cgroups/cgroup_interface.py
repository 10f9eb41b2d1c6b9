"""What the kernel calls a group's files in version 1 and in version 2, and how they are written.

Covers: limits of memory without swap and of processes, what was refused, what is held, and the
share of a contended processor.
Does not cover: limits of CPU time.

Sources: Documentation/admin-guide/cgroup-v1/{memory,pids}.rst, cgroup-v2.rst and
Documentation/scheduler/sched-design-CFS.rst of the kernel.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final, TypeAlias

# Number of the folder in `Place.folders`, name.
File: TypeAlias = "tuple[int, str]"


@dataclass(frozen=True, slots=True)
class CgroupInterface:
    """The files of one version."""

    version: int
    memory: str  # the limit, in the first folder
    swap: str  # there as well: version 1 limits it together with memory, version 2 alone
    pids: File
    # Writing "0" to these, as far as there are such folders, moves the process that writes. None on
    # version 2, where a session is born into its group: there the write takes up to 25 ms, see
    # native.spawn.fork_process.
    join: tuple[File, ...]
    kills: File  # row oom_kill
    refusals: File  # row max
    members: File  # how many processes and threads are in it
    used: File  # all that is charged, what the kernel can drop included
    held: tuple[bytes, ...]  # rows of memory.stat: what processes and tmpfs hold
    weight: File  # its share of a processor that is contended; there if groups are weighed
    ordinary: int  # what the kernel gives it at first
    low: int  # one hundredth of that, which is what nice 19 is to nice 0


# `tasks`, not `cgroup.procs`: a thread that moves itself need not stop all forks of the machine
# meanwhile (cgroup_procs_write_start in kernel/cgroup/cgroup.c), and it is the only one there.
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
    held=(b"rss", b"shmem"),
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
    held=(b"anon", b"shmem", b"pagetables"),
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
    """The number that a file holds; -1 for "max"."""
    text = _read(path).strip()
    return -1 if text == b"max" else int(text)


def rows(path: str, *names: bytes) -> int:
    """The sum of the rows `names` of a file that says "name number" in each line."""
    total = 0
    for line in _read(path).splitlines():
        name, _, value = line.partition(b" ")
        if name in names:
            total += int(value)
    return total


def put(path: str, value: int | str) -> None:
    """Write `value` to a file that is there already; OSError names it."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, str(value).encode())
        finally:
            os.close(fd)
    except OSError as error:
        raise OSError(error.errno, f"{path}: {error.strerror}") from error


def limit_memory(folder: str, files: CgroupInterface, size: int) -> None:
    """Limit the memory of a group to `size` bytes, and leave it no swap."""
    memory, swap = f"{folder}/{files.memory}", f"{folder}/{files.swap}"
    together = files.version == 1
    if not os.path.exists(swap):
        # The kernel does not count swap of groups. Version 1 can be told not to use it.
        put(memory, size)
        if together:
            put(f"{folder}/memory.swappiness", 0)
    elif not together:
        put(swap, 0)
        put(memory, size)
    else:
        # Memory and swap together may at no time be less than memory.
        for path in (swap, memory) if number(swap) < size else (memory, swap):
            put(path, size)


def limits(folders: tuple[str, ...], files: CgroupInterface) -> tuple[int, int]:
    """The limits of memory and processes as the kernel has them; -1 for none."""
    folder, name = files.pids
    return number(f"{folders[0]}/{files.memory}"), number(f"{folders[folder]}/{name}")
