"""Landlock rulesets: file access beyond permissions, and reach to other processes.

Covers: opening, listing, running, making and removing files (each right is handled;
`landlock_rules` has the rights by path); TCP; signals and abstract UNIX sockets to processes
outside; ioctl on devices. Does not cover: stat, chmod, chown, utime, flock and inotify, which no
version restricts; UDP; use of a descriptor that is already open (see the mounts, users and
seccomp).

Source: landlock(7) and the kernel's Documentation/userspace-api/landlock.rst; numbers are those of
uapi/linux/landlock.h. A ruleset binds to inodes when a rule is added, so a mount needs its rule
after it is made; and a process under a ruleset may not mount, so it comes after all mounts.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntFlag
from typing import Final

from ...native.libc import AT_FDCWD, NativeCall, call
from ...native.steps import REFUSED, Address, Preset, Rows, SyscallBatch
from ..recipe import recipe_slots

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


def plan(grants: Iterable[Grant], abi: int, trial: str = "") -> Plan:
    """Return the plan of `grants` under version `abi`, without optional paths that do not exist.

    `trial`: a path for `restrict` to try that no grant lets a process write.
    """
    supported = [version for version in VERSIONS if version.abi <= abi]
    files = sum(version.files for version in supported)
    ruleset = _RulesetAttr(files, sum(v.net for v in supported), sum(v.scope for v in supported))
    rules = tuple(
        (
            grant.path,
            int(grant.files) & files & (files if os.path.isdir(grant.path) else int(_OF_A_FILE)),
        )
        for grant in grants
        if not grant.optional or os.path.exists(grant.path)
    )
    return Plan(abi, ruleset, rules, trial if trial and os.path.exists(trial) else "")


def restrict_rows(plan: Plan, more: Iterable[tuple[str, int]] = ()) -> Rows:
    """Return the rows that put this thread and its children under `plan`, and check that it holds.

    `more`: further rules: paths, and rights as of `FileAccess`, some perhaps unknown to the kernel.
    Needs `no_new_privs`. Afterwards `was_tried` tells whether a write was refused that permissions
    alone allow. A successful write is a failure.
    """
    if not plan.abi:
        return
    handled = plan.ruleset.files
    yield call(
        "landlock_create_ruleset", plan.ruleset, _RULESET_SIZE, 0, keeps=recipe_slots.RULESET
    )
    flags = os.O_PATH | os.O_CLOEXEC
    for index, (path, files) in enumerate((*plan.rules, *more)):
        rights, opened = recipe_slots.rule(index)
        yield Preset(rights, files & handled)
        yield call("openat", AT_FDCWD, path.encode(), flags, 0, keeps=opened)
        yield call("landlock_add_rule", recipe_slots.RULESET, _PATH_BENEATH, Address(rights), 0)
        yield call("close", opened)
    yield call("landlock_restrict_self", recipe_slots.RULESET, 0)
    yield call("close", recipe_slots.RULESET)
    if plan.trial:
        yield from _try(plan.trial)


def _try(trial: str) -> Rows:
    # access(2) checks permissions alone; the ruleset refuses only to open.
    path = trial.encode()
    arguments = AT_FDCWD, path, os.W_OK
    yield call("faccessat", *arguments, keeps=recipe_slots.TRIAL, tolerated=_NOT_PERMITTED)
    opened = AT_FDCWD, path, os.O_WRONLY | os.O_CLOEXEC, 0
    reason = f"the ruleset is loaded, and {trial} can be written"
    yield call("openat", *opened, least=REFUSED, tolerated=_REFUSALS, reason=reason)


def restrict(plan: Plan, more: Iterable[tuple[str, int]] = ()) -> bool:
    """Apply `restrict_rows`; return whether a write was refused that permissions alone allow.

    Raises:
        OSError: a rule cannot be added, the ruleset cannot be loaded, or the write succeeded.
    """
    batch = SyscallBatch([("Landlock", (NOT_TRIED, *restrict_rows(plan, more)))])
    batch.run()
    return was_tried(batch)


# Belongs before `restrict_rows` in a batch that may contain them.
NOT_TRIED: Final = Preset(recipe_slots.TRIAL, 1)


def was_tried(batch: SyscallBatch) -> bool:
    """Return whether a finished batch has seen that a ruleset holds."""
    return batch.slots[recipe_slots.TRIAL] == 0


def pin(plan: Plan) -> list[int]:
    """Return descriptors that keep the kernel from forgetting the plan's inodes while open.

    In /proc, an unused file gets a new inode at the next lookup; a rule would then refer to another
    file.
    """
    return [os.open(path, os.O_PATH | os.O_CLOEXEC) for path, _ in plan.rules]
