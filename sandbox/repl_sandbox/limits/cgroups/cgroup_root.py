"""`find`: the cgroup in which this process may create others, from /proc/self, without changes.

Covers: version 2, delegated or root's own; version 1 with memory and pids, each mounted somewhere;
machines with both, where a controller belongs to one of the two; containers, whose view of the
hierarchy begins at a cgroup of the host. Does not cover: whether the kernel permits creating one;
`cgroup_pool` tries it.

Sources: cgroups(7), proc_pid_mountinfo(5), Documentation/admin-guide/cgroup-v2.rst of the kernel,
https://systemd.io/CGROUP_DELEGATION.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

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
