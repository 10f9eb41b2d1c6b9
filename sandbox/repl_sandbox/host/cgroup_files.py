"""The files of cgroups of version 1 and 2, and the cgroup in which this process may make others."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

# `CgroupInterface`: the files of a cgroup in version 1 and in version 2, and how to write them.
#
# Covers: limits of memory without swap and of processes, events, usage, and CPU weight. Does not
# cover: limits of CPU time.
#
# Sources: Documentation/admin-guide/cgroup-v1/{memory,pids}.rst, cgroup-v2.rst and
# Documentation/scheduler/sched-design-CFS.rst of the kernel.

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
    # native.forks.fork_process.
    join: tuple[File, ...]
    kills: File  # row oom_kill
    # What tells that the group itself was full. Version 1: the most memory, with swap and without,
    # since the last reset; its failcnt stays 0 on Linux 6.18. Version 2: row oom, a count.
    full: tuple[File, ...]
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
    full=((0, "memory.max_usage_in_bytes"), (0, "memory.memsw.max_usage_in_bytes")),
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
    full=((0, "memory.events"),),
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


def read_number(path: str) -> int:
    """The number in a file; -1 for "max"."""
    text = _read(path).strip()
    return -1 if text == b"max" else int(text)


def read_rows(path: str, *names: bytes) -> int:
    """The sum of the rows `names` of a file with rows "name number"."""
    total = 0
    for line in _read(path).splitlines():
        name, _, value = line.partition(b" ")
        if name in names:
            total += int(value)
    return total


def write_value(path: str, value: int | str) -> None:
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
        write_value(memory, size)
        if together:
            write_value(f"{folder}/memory.swappiness", 0)
    elif not together:
        write_value(swap, 0)
        write_value(memory, size)
    else:
        # The limit of memory and swap together may never be below that of memory.
        for path in (swap, memory) if read_number(swap) < size else (memory, swap):
            write_value(path, size)


def memory_limits(folders: tuple[str, ...], files: CgroupInterface) -> tuple[int, int]:
    """The limits of memory and processes from the kernel; -1 for none."""
    folder, name = files.pids
    return read_number(f"{folders[0]}/{files.memory}"), read_number(f"{folders[folder]}/{name}")


# `find`: the cgroup in which this process may create others, from /proc/self, without changes.
#
# Covers: version 2, delegated or root's own; version 1 with memory and pids, each mounted
# somewhere; machines with both, where a controller belongs to one of the two; containers, whose
# view of the hierarchy begins at a cgroup of the host. Does not cover: whether the kernel permits
# creating one; `cgroups.py` tries it.
#
# Sources: cgroups(7), proc_pid_mountinfo(5), Documentation/admin-guide/cgroup-v2.rst of the
# kernel, https://systemd.io/CGROUP_DELEGATION.

# Each limits what nothing else limits: no rlimit counts the memory of several processes.
NEEDED = ("memory", "pids")
# Optional: processors can also be shared by other means (weights).
WEIGHING = "cpu"
# The leaf for this program's own processes in a delegated cgroup of version 2: only leaves may hold
# processes.
LEAF = "repl-env-host"

_DELEGATE = (
    "Run in a group that is delegated: `systemd-run --user --scope -p Delegate=yes ...`, or "
    "Delegate=yes in the service's unit"
)
_WRITABLE = (
    "Mount the cgroup hierarchies writable in the container, with a group of its own "
    "(--cgroupns=private), or run outside of it"
)
_CONTROLLERS = (
    "Give the group the controllers memory and pids: Delegate=yes in its unit, "
    "cgroup.subtree_control of its parent, and no cgroup_disable= among the boot parameters"
)
_GIVEN = (
    "Have root give this user a group in the hierarchies memory and pids, and start in it, or run "
    "as root"
)
_MOUNTED = "Mount cgroup2 at /sys/fs/cgroup, as systemd and container engines do"


@dataclass(frozen=True, slots=True)
class CgroupRoot:
    """A cgroup of each hierarchy in which cgroups can be created. On version 2 they are one
    folder.
    """

    version: int
    folders: tuple[str, ...]  # in the order of NEEDED; one folder on version 2
    needs_leaf: bool = False  # version 2: this program's processes must move to a leaf first
    weighing: str = ""  # the folder of WEIGHING; none if it is missing


@dataclass(frozen=True, slots=True)
class CgroupUnavailable:
    """The reason why cgroups are unavailable, and what the operator can change."""

    reason: str
    remedy: str


@dataclass(frozen=True, slots=True)
class _Mount:
    kind: str
    root: str  # the cgroup that is mounted at `point`
    point: str
    options: frozenset[str]  # of the hierarchy: on version 1 its controllers
    writable: bool


def find(proc: str = "/proc/self") -> CgroupRoot | CgroupUnavailable:
    """Return where cgroups can be created; `proc` is the kernel's description of this process."""
    try:
        mounts = list(_mounts(f"{proc}/mountinfo"))
        groups = _groups(f"{proc}/cgroup")
    except OSError as error:
        return CgroupUnavailable(f"{proc} does not say: {error.strerror}", _MOUNTED)
    found = [_version_2(mounts, groups), _version_1(mounts, groups)]
    places = [place for place in found if isinstance(place, CgroupRoot)]
    if places:
        return places[0]
    # Version 1 counts only where it has the controllers, and then version 2 cannot have them.
    reasons = [missing for missing in found if isinstance(missing, CgroupUnavailable)]
    return reasons[-1] if reasons else CgroupUnavailable("no hierarchy is mounted", _MOUNTED)


def _mounts(path: str) -> Iterator[_Mount]:
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            before, _, after = line.partition(" - ")
            fields, (kind, _, options, *_) = before.split(), after.split()
            if kind in ("cgroup", "cgroup2"):
                root, point = map(_plain, fields[3:5])
                writable = "rw" in fields[5].split(",") and "rw" in options.split(",")
                yield _Mount(kind, root, point, frozenset(options.split(",")), writable)


def _plain(text: str) -> str:
    """A path of mountinfo, in which white space and backslashes are octal numbers."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


def _groups(path: str) -> dict[str, str]:
    """This process's cgroup by controller; the cgroup of version 2 has the name ""."""
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        rows = [line.rstrip("\n").split(":", 2) for line in file]
    return {name: group for _, names, group in rows for name in names.split(",")}


def _folder(mount: _Mount, group: str) -> str | None:
    """The path of `group`; None if it lies outside of the mounted hierarchy."""
    inside = os.path.relpath(group, mount.root)
    if inside.startswith(".."):
        return None
    return os.path.normpath(os.path.join(mount.point, inside))


# ── version 1 ─────────────────────────────────────────────────────────────────────────────────


def _version_1(
    mounts: list[_Mount], groups: dict[str, str]
) -> CgroupRoot | CgroupUnavailable | None:
    folders = []
    for name in NEEDED:
        mount = next((m for m in mounts if m.kind == "cgroup" and name in m.options), None)
        if mount is None or name not in groups:
            return None
        folder = _folder(mount, groups[name])
        if folder is None or not _divisible_1(mount, folder):
            own = mount.writable and folder is not None and os.path.isdir(folder)
            return CgroupUnavailable(
                f"version 1, {name}: {folder or 'this group'} is not writable",
                _GIVEN if own else _WRITABLE,
            )
        folders.append(folder)
    return CgroupRoot(1, tuple(folders), weighing=_weighing(mounts, groups))


def _weighing(mounts: list[_Mount], groups: dict[str, str]) -> str:
    for mount in mounts:
        if mount.kind == "cgroup" and WEIGHING in mount.options and WEIGHING in groups:
            folder = _folder(mount, groups[WEIGHING])
            if folder is not None and _divisible_1(mount, folder):
                return folder
    return ""


def _divisible_1(mount: _Mount, folder: str) -> bool:
    return mount.writable and os.access(folder, os.W_OK)


# ── version 2 ─────────────────────────────────────────────────────────────────────────────────


def _version_2(
    mounts: list[_Mount], groups: dict[str, str]
) -> CgroupRoot | CgroupUnavailable | None:
    mount = next((m for m in mounts if m.kind == "cgroup2"), None)
    if mount is None or "" not in groups:
        return None
    folder = _folder(mount, groups[""])
    if folder is None or not os.path.isdir(folder):
        return CgroupUnavailable(
            "version 2: this group lies outside of the mounted hierarchy", _WRITABLE
        )
    if os.path.basename(folder) == LEAF:
        folder = os.path.dirname(folder)
    if not set(NEEDED) <= set(words(f"{folder}/cgroup.controllers")):
        return CgroupUnavailable(
            f"version 2: {folder} has not both of memory and pids", _CONTROLLERS
        )
    if not mount.writable:
        return CgroupUnavailable(f"version 2: {folder} is mounted read-only", _WRITABLE)
    if not os.access(folder, os.W_OK) or not os.access(f"{folder}/cgroup.procs", os.W_OK):
        return CgroupUnavailable(f"version 2: {folder} is not this user's to divide", _DELEGATE)
    weighing = folder if WEIGHING in words(f"{folder}/cgroup.controllers") else ""
    if set(NEEDED) <= set(words(f"{folder}/cgroup.subtree_control")):
        return CgroupRoot(2, (folder,), weighing=weighing)
    found = _divisible(folder, groups[""])
    return found if isinstance(found, CgroupUnavailable) else replace(found, weighing=weighing)


def _divisible(folder: str, group: str) -> CgroupRoot | CgroupUnavailable:
    """Return the cgroup if it can pass on its controllers: it may only while it has no process.

    The root cgroup is exempt; only it has no cgroup.events.
    """
    processes = [int(pid) for pid in words(f"{folder}/cgroup.procs")]
    if not processes or not os.path.exists(f"{folder}/cgroup.events"):
        return CgroupRoot(2, (folder,))
    if not (_delegated(folder) or group == "/"):
        return CgroupUnavailable(
            f"version 2: {folder} belongs to who manages the system", _DELEGATE
        )
    if not all(map(_ours, processes)):
        return CgroupUnavailable(
            f"version 2: {folder} holds processes that are not ours to move", _DELEGATE
        )
    return CgroupRoot(2, (folder,), needs_leaf=True)


def _delegated(folder: str) -> bool:
    """Return whether systemd delegated the cgroup, by an attribute or to another owner."""
    owner = os.stat(folder).st_uid
    if owner == os.geteuid() != 0:
        return True
    for name in ("trusted.delegate", "user.delegate"):
        try:
            if os.getxattr(folder, name) == b"1":
                return True
        except OSError:
            continue  # not set, or not visible to this user
    return False


def _ours(pid: int) -> bool:
    """Return whether `pid` is this process, or a descendant of it."""
    while pid > 1 and pid != os.getpid():
        try:
            with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
                pid = int(file.read(1024).rpartition(b")")[2].split(None, 2)[1])
        except OSError:
            return True  # it has ended meanwhile
    return pid == os.getpid()


def words(path: str) -> list[str]:
    """The words of a file of the hierarchy; none if it is missing or unreadable."""
    try:
        with open(path, encoding="ascii") as file:
            return file.read().split()
    except OSError:
        return []
