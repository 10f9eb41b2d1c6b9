"""What the kernel calls a group's files in version 1 and in version 2, and how they are written.

Covers: limits of memory without swap and of processes, what was refused, what is held.
Does not cover: CPU time; sessions share it as processes do.

Sources: Documentation/admin-guide/cgroup-v1/{memory,pids}.rst and cgroup-v2.rst of the kernel.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Files:
    """The files of one version. A folder's number is its place in `Place.folders`."""

    memory: str  # the limit, in the first folder
    memory_and_swap: str  # version 1: of both together; version 2: of swap alone; may be missing
    swap_allowed: bool  # whether that file takes the limit of memory, and not 0
    pids: tuple[int, str]
    # Writing "0" to these moves the process that writes. None on version 2, where a session is born
    # into its group: there the write takes up to 25 ms, see jail.libc.fork_into_group.
    join: tuple[tuple[int, str], ...]
    out_of_memory: tuple[int, str, bytes]  # folder, file and row of a count of kills
    out_of_processes: tuple[int, str, bytes]  # likewise of forks that were refused
    used: str  # in the first folder: all that is charged, what the kernel can drop included
    held: tuple[bytes, ...]  # rows of memory.stat: private pages, pages of tmpfs and shared memory


# `tasks`, not `cgroup.procs`: a thread that moves itself need not stop all forks of the machine
# meanwhile (cgroup_procs_write_start in kernel/cgroup/cgroup.c), and it is the only one there.
VERSION_1: Final = Files(
    "memory.limit_in_bytes",
    "memory.memsw.limit_in_bytes",
    True,
    (1, "pids.max"),
    ((0, "tasks"), (1, "tasks")),
    (0, "memory.oom_control", b"oom_kill"),
    (1, "pids.events", b"max"),
    "memory.usage_in_bytes",
    (b"rss", b"shmem"),
)
VERSION_2: Final = Files(
    "memory.max",
    "memory.swap.max",
    False,
    (0, "pids.max"),
    (),
    (0, "memory.events", b"oom_kill"),
    (0, "pids.events", b"max"),
    "memory.current",
    (b"anon", b"shmem"),
)
VERSIONS: Final = {1: VERSION_1, 2: VERSION_2}


def rows(data: bytes, names: tuple[bytes, ...]) -> int:
    """The sum of the rows `names` of a file that says "name number" in each line."""
    total = 0
    for line in data.splitlines():
        name, _, number = line.partition(b" ")
        if name in names:
            total += int(number)
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


def limit_memory(folder: str, files: Files, size: int) -> None:
    """Limit the memory of a group to `size` bytes, and leave it no swap."""
    swap = f"{folder}/{files.memory_and_swap}"
    if not os.path.exists(swap):
        # The kernel does not count swap of groups. Version 1 can be told not to use it.
        put(f"{folder}/{files.memory}", size)
        if files.swap_allowed:
            put(f"{folder}/memory.swappiness", 0)
    elif not files.swap_allowed:
        put(swap, 0)
        put(f"{folder}/{files.memory}", size)
    else:
        # Memory and swap together may at no time be less than memory.
        order = [f"{folder}/{files.memory}", swap]
        with open(swap, encoding="ascii") as file:
            if int(file.read()) < size:
                order.reverse()
        for path in order:
            put(path, size)


def limits(folders: tuple[str, ...], files: Files) -> tuple[int, int]:
    """The limits of memory and processes as the kernel has them; OSError if they cannot be read."""
    number, name = files.pids
    values = []
    for path in (f"{folders[0]}/{files.memory}", f"{folders[number]}/{name}"):
        with open(path, encoding="ascii") as file:
            text = file.read().strip()
        values.append(-1 if text == "max" else int(text))
    return values[0], values[1]
