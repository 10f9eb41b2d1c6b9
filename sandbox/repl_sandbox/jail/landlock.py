"""Landlock: rulesets of file access and of reach to other processes; the rights of each tier."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntFlag
from typing import Final

from ..native.libc import AT_FDCWD, NativeCall, call
from ..native.library import REFUSED, Address, Preset, Rows, SyscallBatch
from . import slots

# Landlock rulesets: file access beyond permissions, and reach to other processes.
#
# Covers: opening, listing, running, making and removing files (each right is handled;
# the rights by path are below); TCP on a network of others; signals and abstract UNIX
# sockets to processes outside; ioctl on devices. Does not cover: stat, chmod, chown, utime, flock
# and inotify, which no version restricts; UDP; use of a descriptor that is already open (see the
# mounts, users and seccomp).
#
# Source: landlock(7) and the kernel's Documentation/userspace-api/landlock.rst; numbers are those
# of uapi/linux/landlock.h. A ruleset binds to inodes when a rule is added, so a mount needs its
# rule after it is made; and a process under a ruleset may not mount, so it comes after all
# mounts.

_VERSION_FLAG: Final = 1  # LANDLOCK_CREATE_RULESET_VERSION: tells the ABI, makes nothing
_PATH_BENEATH: Final = 1  # LANDLOCK_RULE_PATH_BENEATH


class FileAccess(IntFlag):
    """LANDLOCK_ACCESS_FS_*: rights that a rule can give below its path."""

    EXECUTE = 1 << 0
    WRITE_FILE = 1 << 1
    READ_FILE = 1 << 2
    READ_DIR = 1 << 3
    REMOVE_DIR = 1 << 4
    REMOVE_FILE = 1 << 5
    MAKE_CHAR = 1 << 6
    MAKE_DIR = 1 << 7
    MAKE_REG = 1 << 8
    MAKE_SOCK = 1 << 9
    MAKE_FIFO = 1 << 10
    MAKE_BLOCK = 1 << 11
    MAKE_SYM = 1 << 12
    REFER = 1 << 13
    TRUNCATE = 1 << 14
    IOCTL_DEV = 1 << 15
    RESOLVE_UNIX = 1 << 16


class NetworkAccess(IntFlag):
    """LANDLOCK_ACCESS_NET_*: no rule gives any of these."""

    BIND_TCP = 1 << 0
    CONNECT_TCP = 1 << 1


class Scope(IntFlag):
    """LANDLOCK_SCOPE_*: a process reaches only processes under the same ruleset."""

    ABSTRACT_UNIX_SOCKET = 1 << 0
    SIGNAL = 1 << 1


_FIRST: Final = FileAccess((FileAccess.MAKE_SYM << 1) - 1)
# Rights that a rule on a file, and not on a directory, can give.
_OF_A_FILE: Final = (
    FileAccess.EXECUTE
    | FileAccess.WRITE_FILE
    | FileAccess.READ_FILE
    | FileAccess.TRUNCATE
    | FileAccess.IOCTL_DEV
)


@dataclass(frozen=True, slots=True)
class Version:
    """One version of the kernel's interface: its additions, and their use."""

    abi: int
    kernel: str
    reason: str
    files: int = 0  # of FileAccess
    net: int = 0  # of NetworkAccess
    scope: int = 0  # of Scope

    @property
    def restricts(self) -> bool:
        """True if the version adds a restriction."""
        return bool(self.files or self.net or self.scope)


FILES: Final = 1
REFER: Final = 2
TRUNCATE: Final = 3
TCP: Final = 4
DEVICES: Final = 5
SCOPES: Final = 6
AUDIT: Final = 7
THREADS: Final = 8
SOCKETS: Final = 9

VERSIONS: Final[tuple[Version, ...]] = (
    Version(FILES, "5.13", "files", _FIRST),
    Version(REFER, "5.19", "renames across directories", FileAccess.REFER),
    Version(TRUNCATE, "6.2", "truncation", FileAccess.TRUNCATE),
    Version(TCP, "6.7", "TCP", net=NetworkAccess.BIND_TCP | NetworkAccess.CONNECT_TCP),
    Version(DEVICES, "6.10", "commands to devices", FileAccess.IOCTL_DEV),
    Version(
        SCOPES,
        "6.12",
        "signals, abstract sockets",
        scope=Scope.ABSTRACT_UNIX_SOCKET | Scope.SIGNAL,
    ),
    Version(AUDIT, "6.15", "the audit log records refusals"),
    Version(THREADS, "7.0", "all threads at once; a session is restricted while it has one"),
    Version(SOCKETS, "7.1", "sockets by path", FileAccess.RESOLVE_UNIX),
)


@dataclass(frozen=True, slots=True)
class Grant:
    """`files` is given at `path` and below it; `optional`: some systems lack the path."""

    path: str
    files: FileAccess
    reason: str
    optional: bool = False


class _RulesetAttr(ctypes.Structure):
    # A kernel accepts a shorter structure than its own for an older interface, and a longer one
    # only if the fields unknown to it are zero.
    _fields_ = [(name, ctypes.c_uint64) for name in ("files", "net", "scope")]


@dataclass(frozen=True, slots=True)
class Plan:
    """A ruleset without its inodes: made once for a template, loaded by each worker.

    `abi`: the kernel's version; with 0 the plan does nothing. `rules`: paths and rights. `trial`: a
    path that permissions let a process write and the rules do not, or "" where there is none.
    """

    abi: int
    ruleset: _RulesetAttr
    rules: tuple[tuple[str, int], ...]
    trial: str


_create_ruleset: Final = NativeCall(
    "landlock_create_ruleset", ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint
)
_RULESET_SIZE: Final = ctypes.sizeof(_RulesetAttr)
# Errnos of a refused write by the ruleset; permissions may also refuse it before.
_REFUSALS: Final = (errno.EACCES, errno.EPERM)
_NOT_PERMITTED: Final = (*_REFUSALS, errno.EROFS, errno.ENOENT)


def kernel_abi() -> int:
    """Return the version of Landlock that this kernel offers, 0 if it has or runs none.

    Raises:
        OSError: the kernel answers otherwise, as a container's filter may.
    """
    try:
        return _create_ruleset(0, 0, _VERSION_FLAG)
    except OSError as error:
        # ENOSYS: built without; EOPNOTSUPP: switched off at boot.
        if error.errno in (errno.ENOSYS, errno.EOPNOTSUPP):
            return 0
        raise


def plan(grants: Iterable[Grant], abi: int, trial: str = "", *, own_network: bool = False) -> Plan:
    """Return the plan of `grants` under version `abi`, without optional paths that do not exist.

    `trial`: a path for `restrict` to try that no grant lets a process write. `own_network`: TCP is
    not restricted, because the session is alone in its network namespace.
    """
    supported = [version for version in VERSIONS if version.abi <= abi]
    files = sum(version.files for version in supported)
    net = 0 if own_network else sum(version.net for version in supported)
    ruleset = _RulesetAttr(files, net, sum(version.scope for version in supported))
    rules = tuple(
        (
            grant.path,
            int(grant.files) & files & (files if os.path.isdir(grant.path) else int(_OF_A_FILE)),
        )
        for grant in grants
        if not grant.optional or os.path.exists(grant.path)
    )
    return Plan(abi, ruleset, rules, trial if trial and os.path.exists(trial) else "")


# Rights to change files, which a branch gives up outside its own.
_CHANGES: Final = (
    FileAccess.WRITE_FILE
    | FileAccess.TRUNCATE
    | FileAccess.REMOVE_DIR
    | FileAccess.REMOVE_FILE
    | FileAccess.MAKE_CHAR
    | FileAccess.MAKE_DIR
    | FileAccess.MAKE_REG
    | FileAccess.MAKE_SOCK
    | FileAccess.MAKE_FIFO
    | FileAccess.MAKE_BLOCK
    | FileAccess.MAKE_SYM
    | FileAccess.REFER
)


def of_changes(grants: Iterable[Grant], abi: int) -> Plan:
    """Return the plan that refuses every change of files except by `grants`, and nothing else."""
    full = plan(grants, abi)
    changes = full.ruleset.files & int(_CHANGES)
    rules = tuple((path, files & changes) for path, files in full.rules if files & changes)
    return Plan(abi, _RulesetAttr(changes, 0, 0), rules, "")


def restrict_rows(
    plan: Plan, more: Iterable[tuple[str | ctypes.Array[ctypes.c_char], int]] = ()
) -> Rows:
    """Return the rows that put this thread and its children under `plan`, and check that it holds.

    `more`: further rules: paths, and rights as of `FileAccess`, some perhaps unknown to the kernel.
    A path in memory is read when the rows run. Needs `no_new_privs`. Afterwards `was_tried` tells
    whether a write was refused that permissions alone allow. A successful write is a failure.
    """
    if not plan.abi:
        return
    handled = plan.ruleset.files
    yield call("landlock_create_ruleset", plan.ruleset, _RULESET_SIZE, 0, keeps=slots.RULESET)
    flags = os.O_PATH | os.O_CLOEXEC
    for index, (path, files) in enumerate((*plan.rules, *more)):
        rights, opened = slots.rule(index)
        yield Preset(rights, files & handled)
        name = path.encode() if isinstance(path, str) else path
        yield call("openat", AT_FDCWD, name, flags, 0, keeps=opened)
        yield call("landlock_add_rule", slots.RULESET, _PATH_BENEATH, Address(rights), 0)
        yield call("close", opened)
    yield call("landlock_restrict_self", slots.RULESET, 0)
    yield call("close", slots.RULESET)
    if plan.trial:
        yield from _try(plan.trial)


def _try(trial: str) -> Rows:
    # access(2) checks permissions alone; the ruleset refuses only to open.
    path = trial.encode()
    arguments = AT_FDCWD, path, os.W_OK
    yield call("faccessat", *arguments, keeps=slots.TRIAL, tolerated=_NOT_PERMITTED)
    opened = AT_FDCWD, path, os.O_WRONLY | os.O_CLOEXEC, 0
    reason = f"the ruleset is loaded, and {trial} can be written"
    yield call("openat", *opened, least=REFUSED, tolerated=_REFUSALS, reason=reason)


# Belongs before `restrict_rows` in a batch that may contain them.
NOT_TRIED: Final = Preset(slots.TRIAL, 1)


def was_tried(batch: SyscallBatch) -> bool:
    """Return whether a finished batch has seen that a ruleset holds."""
    return batch.slots[slots.TRIAL] == 0


def pin(plan: Plan) -> list[int]:
    """Return descriptors that keep the kernel from forgetting the plan's inodes while open.

    In /proc, an unused file gets a new inode at the next lookup; a rule would then refer to another
    file.
    """
    return [os.open(path, os.O_PATH | os.O_CLOEXEC) for path, _ in plan.rules]


# File system rights of a session's code, by tier: path, rights, reason.
#
# This table is the policy; `ruleset` makes a ruleset of it. Anything without a row is refused:
# devices and their commands, and everything else that is not there to be read.

READ: Final = FileAccess.READ_FILE | FileAccess.READ_DIR
RUN: Final = READ | FileAccess.EXECUTE
WRITE: Final = FileAccess.WRITE_FILE | FileAccess.TRUNCATE
TERMINAL: Final = (
    FileAccess.READ_FILE | FileAccess.READ_DIR | FileAccess.WRITE_FILE | FileAccess.IOCTL_DEV
)
OWN: Final = (
    RUN
    | WRITE
    | FileAccess.REMOVE_DIR
    | FileAccess.REMOVE_FILE
    | FileAccess.MAKE_DIR
    | FileAccess.MAKE_REG
    | FileAccess.MAKE_SOCK
    | FileAccess.MAKE_FIFO
    | FileAccess.MAKE_SYM
    | FileAccess.REFER
)

# Its permissions let everybody write it, and no row of any tier lets a session do so: opening it
# shows whether the ruleset is in force.
TRIAL: Final = "/dev/random"

_DEVICES: Final = (
    Grant("/dev/null", READ | WRITE, "output that is discarded"),
    Grant("/dev/zero", READ | WRITE, "memory shared with children, by old programs"),
    Grant("/dev/full", READ | WRITE, "programs test by it that they notice a full disk"),
)

# The view holds only files that are meant for the session, so all of it can be read. It is mounted
# read-only, and this row repeats that; /proc, which the view cannot protect, is not writable
# either.
JAILED: Final[tuple[Grant, ...]] = (
    Grant("/", RUN, "the view, which has been made for the session"),
    Grant("/tmp", OWN, "the session's own"),
    Grant("/var/tmp", OWN, "the session's own: /tmp"),
    Grant("/workspace", OWN, "the session's own"),
    Grant("/dev/shm", OWN, "the session's own; semaphores of multiprocessing"),
    Grant("/dev/pts", TERMINAL, "the session's own terminals: pty, script, pexpect"),
    *_DEVICES,
)

# Directories that a session and its branches have in common, by tier. A branch may write there only
# if the session has no files there, which the branch could take for its own.
COMMON: Final[dict[str, tuple[str, ...]]] = {
    "jailed": ("/tmp", "/dev/shm"),
    "confined": (),
    "alone": (),
}

# There is no view here, so every path is one of the host's, and a path without a row does not open.
# The template adds the interpreter, its libraries and the operator's mounts.
CONFINED: Final[tuple[Grant, ...]] = (
    Grant("/usr", RUN, "programs and libraries of the system"),
    Grant("/bin", RUN, "the same, where /usr is not merged", optional=True),
    Grant("/sbin", RUN, "the same, where /usr is not merged", optional=True),
    Grant("/lib", RUN, "the same, where /usr is not merged", optional=True),
    Grant("/lib32", RUN, "the same, where /usr is not merged", optional=True),
    Grant("/lib64", RUN, "the dynamic loader", optional=True),
    Grant("/etc/ld.so.cache", READ, "the dynamic loader", optional=True),
    Grant("/etc/alternatives", READ, "links to libraries on Debian: BLAS", optional=True),
    Grant("/etc/fonts", READ, "fontconfig, matplotlib", optional=True),
    Grant("/etc/matplotlibrc", READ, "matplotlib", optional=True),
    Grant("/etc/localtime", READ, "the C library: the time zone", optional=True),
    Grant("/etc/mime.types", READ, "mimetypes", optional=True),
    # Of these no file tells accounts, keys or addresses; /etc/passwd, hostname, hosts, resolv.conf,
    # gitconfig and pip.conf do, and have no row.
    Grant("/etc/debian_version", READ, "pip names the system by it", optional=True),
    Grant("/etc/os-release", READ, "platform.freedesktop_os_release, pip", optional=True),
    Grant("/etc/lsb-release", READ, "pip names the system by it", optional=True),
    Grant("/etc/redhat-release", READ, "pip names the system by it", optional=True),
    Grant("/etc/alpine-release", READ, "programs name the system by it", optional=True),
    Grant("/etc/timezone", READ, "tzlocal, pandas: the time zone's name", optional=True),
    Grant("/etc/services", READ, "socket.getservbyname", optional=True),
    Grant("/etc/protocols", READ, "socket.getprotobyname", optional=True),
    Grant("/etc/inputrc", READ, "readline", optional=True),
    Grant("/etc/magic", READ, "the program file, libmagic", optional=True),
    Grant("/etc/locale.alias", READ, "the C library: names of locales", optional=True),
    Grant("/etc/papersize", READ, "R, plots", optional=True),
    Grant("/proc/cpuinfo", READ, "BLAS and torch choose code for the processor", optional=True),
    Grant("/proc/meminfo", READ, "how much memory there is", optional=True),
    Grant("/proc/stat", READ, "the C library counts processors", optional=True),
    # Of the worker alone, because its children have other numbers; and not the whole directory,
    # because `mounts` and `net` are the host's.
    Grant("/proc/self/status", READ, "own memory, threads"),
    Grant("/proc/self/stat", READ, "own usage"),
    Grant("/proc/self/statm", READ, "own memory"),
    Grant("/proc/self/maps", READ, "own mappings: C libraries, debuggers"),
    Grant("/proc/self/smaps_rollup", READ, "own memory, exactly", optional=True),
    Grant("/proc/self/fd", READ, "own descriptors: subprocess closes them by this list"),
    Grant("/sys/devices/system/cpu", READ, "how many processors there are", optional=True),
    Grant("/sys/devices/system/node", READ, "how memory is divided", optional=True),
    Grant("/sys/kernel/mm/transparent_hugepage", READ, "memory allocators, numpy", optional=True),
    *_DEVICES,
    Grant("/dev/random", READ, "random numbers"),
    Grant("/dev/urandom", READ, "random numbers"),
)


def of_branch(common: tuple[str, ...]) -> tuple[Grant, ...]:
    """Return the rows by which a branch may change files that are not its own: those in `common`
    directories, and devices. It has the rights `OWN` in its own directory.
    """
    return (
        *(Grant(path, OWN, "common to all branches, and empty") for path in common),
        Grant("/dev/pts", WRITE, "terminals, where the session may open them", optional=True),
        *_DEVICES,
    )


# Files of a control group, by version: its limits, and none of its processes or neighbours.
_LIMITS_V2: Final = ("cpu.max", "memory.max", "memory.high")
_LIMITS_V1: Final = {
    "cpu": ("cpu.cfs_quota_us", "cpu.cfs_period_us", "cpu.shares"),
    "memory": ("memory.limit_in_bytes",),
    "cpuset": ("cpuset.cpus",),
}


def cgroup_limits(root: str = "/sys/fs/cgroup") -> Iterator[Grant]:
    """Yield grants for the limits of this process's control groups and of the root of each.

    Libraries count processors and memory by them (duckdb, joblib), and take a refusal for an error.
    """
    with open("/proc/self/cgroup", encoding="utf-8") as file:
        rows = [line.rstrip("\n").split(":", 2) for line in file]
    for _, controllers, path in rows:
        for controller in controllers.split(","):
            names = _LIMITS_V1.get(controller, ()) if controller else _LIMITS_V2
            for folder in {os.path.normpath(f"{root}/{controller}/{each}") for each in ("", path)}:
                for name in names:
                    yield Grant(f"{folder}/{name}", READ, "limits of the container", optional=True)
