"""Process facts read from /proc: descendants, memory, descriptors."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any


def here(pid: int, query: Callable[..., Any], *, apart: bool) -> int:
    """The id that a session's process `pid` has here.

    A session that is `apart` lies in a pid namespace of its container, and tells its processes' ids
    there; `query` looks at it from inside. The number of a namespace is the same everywhere.

    Raises:
        ProcessLookupError: there is no such process.
    """
    if not apart:
        return pid
    namespace = query("namespace", "self", "pid")
    for each in filter(str.isdigit, os.listdir("/proc")):
        if _link(f"/proc/{each}/ns/pid") != namespace:
            continue
        if _field(each, "NSpid").split()[-1:] == [str(pid)]:
            return int(each)
    raise ProcessLookupError(f"process {pid} of the session is nowhere here")


def descendants(pid: int) -> list[int]:
    """The processes below `pid`, at one moment."""
    found: list[int] = []
    for task in _listed(f"/proc/{pid}/task"):
        try:
            children = Path(f"/proc/{pid}/task/{task}/children").read_text().split()
        except OSError:
            continue
        for child in map(int, children):
            found += [child, *descendants(child)]
    return found


def identities(pids: list[int]) -> dict[int, str]:
    """Each process with its start time, which distinguishes it from a later process with the same
    id.
    """
    found = {}
    for pid in pids:
        fields = _stat(pid)
        if fields and fields[0] != "Z":
            found[pid] = fields[19]
    return found


def memory(pids: list[int]) -> int:
    """Bytes that the processes hold together, shared pages counted once (smaps_rollup's Pss)."""
    total = 0
    for pid in pids:
        try:
            rows = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += sum(
            int(row.split()[1]) for row in rows if row.startswith(("Pss_Anon:", "Pss_Shmem:"))
        )
    return total << 10


def names(pids: list[int]) -> set[str]:
    """The names (comm) of the processes."""
    found = set()
    for pid in pids:
        try:
            found.add(Path(f"/proc/{pid}/comm").read_text().strip())
        except OSError:
            continue
    return found


def resident() -> int:
    """Bytes that this process holds."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def descriptors(pid: int | str) -> int:
    """The number of open descriptors of a process; 0 if it may not be read.

    Descriptors of networks that a zygote keeps for its next sessions do not count.
    """
    return sum(
        not _link(f"/proc/{pid}/fd/{fd}").startswith("net:") for fd in _listed(f"/proc/{pid}/fd")
    )


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def _field(pid: str, name: str) -> str:
    """A field of /proc/PID/status; "" of a process that is gone."""
    try:
        rows = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return ""
    return next((row.partition(":")[2] for row in rows if row.startswith(f"{name}:")), "")


def _stat(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    except OSError:
        return []


def _listed(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except OSError:
        return []
