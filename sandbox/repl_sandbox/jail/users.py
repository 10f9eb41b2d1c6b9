"""Users, namespaces, capabilities and the cgroup of a session's processes."""

from __future__ import annotations

import os
import struct
from typing import Final

from ..native import libc
from ..native.libc import call
from ..native.library import Rows, perform
from . import slots

# Capabilities set to zero: effective, permitted, inheritable, ambient and the bounding set.
#
# Covers: rights of a process as "root" of its namespaces, now and after any exec. Does not cover:
# rights of every user (seccomp, mounts).

# capset(2), struct __user_cap_header_struct of this process, and twice __user_cap_data_struct: none
# effective, permitted or inheritable.
_LINUX_CAPABILITY_VERSION_3: Final = 0x20080522
_HEADER: Final = struct.pack("=Ii", _LINUX_CAPABILITY_VERSION_3, 0)
_NONE: Final = bytes(2 * 3 * 4)


def last_capability() -> int:
    """Return the highest capability of this kernel. Tried: /proc may show processes only."""
    last = 0
    while libc.knows_capability(last + 1):
        last += 1
    return last


def empty_bounding_set_rows(last: int) -> Rows:
    """Return the rows after which no exec gains a capability, up to number `last`."""
    for capability in range(last + 1):
        yield call("prctl", libc.PR_CAPBSET_DROP, capability)


def drop_all_rows(tolerated: tuple[int, ...] = ()) -> Rows:
    """Return the rows that drop every capability of this process: ambient, then the other sets.

    `tolerated`: errnos of a kernel without an ambient set.
    """
    clear_ambient = libc.PR_CAP_AMBIENT, libc.PR_CAP_AMBIENT_CLEAR_ALL
    yield call("prctl", *clear_ambient, tolerated=tolerated)
    yield call("capset", _HEADER, _NONE)


# A session process's part in its cgroup: join it, and be the first that the kernel kills.
#
# Covers: joining through descriptors that the host opened, so that no path of the hierarchy is
# visible; a view of the hierarchy that begins at the session's cgroup; the victim when memory
# runs out. Does not cover: limits and counts (cgroups), which are the host's.

# proc_pid_oom_score_adj(5), and its largest value, which outweighs any size.
_OOM_SCORE: Final = b"/proc/self/oom_score_adj"
_FIRST_TO_GO: Final = b"1000"


def join_rows(groups: int) -> Rows:
    """Return the rows that move this process, which has one thread, into the cgroups in the slots.

    Version 2 has none: the process was born into its cgroup.
    """
    for index in range(groups):
        yield call("write", slots.group(index), b"0", 1, least=1)


def close_view_rows() -> Rows:
    """Return the rows that make a cgroup namespace, which begins at this process's cgroup.

    It hides the host's cgroups above, and the process id in their names.
    """
    yield call("unshare", libc.CLONE_NEWCGROUP)


def prefer_for_oom_kill_rows() -> Rows:
    """Return the rows that make the kernel kill this process and its children before init."""
    # While the process hides its memory, the file belongs to no user here; the process hides it
    # again before any code runs.
    yield call("prctl", libc.PR_SET_DUMPABLE, 1)
    flags = os.O_WRONLY | os.O_CLOEXEC
    yield call("openat", libc.AT_FDCWD, _OOM_SCORE, flags, keeps=slots.OPENED)
    yield call("write", slots.OPENED, _FIRST_TO_GO, len(_FIRST_TO_GO))
    yield call("close", slots.OPENED)


# Namespaces of a session: all that Linux has except time, which nothing here needs.
#
# Covers: own process, network, ipc, host name, cgroup and mount views, and a user namespace whose
# users have no rights outside. Does not cover: content of the mount view (mounts), outside users
# (users), kernel bugs (seccomp narrows the reachable kernel).

# user first in the list because it allows the others to an ordinary user.
SESSION: dict[str, int] = {
    "user": libc.CLONE_NEWUSER,
    "pid": libc.CLONE_NEWPID,
    "mnt": libc.CLONE_NEWNS,
    "net": libc.CLONE_NEWNET,
    "ipc": libc.CLONE_NEWIPC,
    "uts": libc.CLONE_NEWUTS,
    "cgroup": libc.CLONE_NEWCGROUP,
}

# Namespaces made for each session with its first process; network namespaces are reused.
FLAGS = sum(SESSION.values()) & ~libc.CLONE_NEWNET

_HOSTNAME = b"repl"


def set_hostname_rows() -> Rows:
    """Return the rows that set a host name which does not identify the host."""
    yield call("sethostname", _HOSTNAME, len(_HOSTNAME))


# Users of a session inside and outside its user namespace.
#
# Inside, the session's init is uid 0 and its code is uid 1000. If root starts the sandbox, both
# are outside uids of that session alone, without an account; if an ordinary user does, both are
# that user. Outside, uid 0 is never among them.
#
# Does not cover: capabilities (capabilities), which do not follow from the uid in a namespace.

INIT_ID = 0
CODE_ID = 1000

# systemd's list of uid ranges assigns 1879048192 to 2147483647 to nobody.
FIRST_OUTER_ID = 1_900_000_000
IDS_PER_SESSION = 2
# Enough for every process id of Linux; slots repeat only after that many sessions.
SLOTS = 1 << 22


def map_session(pid: int, slot: int | None) -> None:
    """Write the id maps of the session whose init is `pid`, from its parent namespace.

    `slot` numbers the session among those of the host and gives it its own two uids. None, for an
    ordinary user, maps the code's uid to the user of this process in its own namespace.
    """
    if slot is None:
        rows = f"{CODE_ID} {os.geteuid()} 1\n"
        groups = f"{CODE_ID} {os.getegid()} 1\n"
        _write(pid, "setgroups", "deny")
    else:
        outer = FIRST_OUTER_ID + IDS_PER_SESSION * (slot % SLOTS)
        rows = groups = f"{INIT_ID} {outer} 1\n{CODE_ID} {outer + 1} 1\n"
    _write(pid, "gid_map", groups)
    _write(pid, "uid_map", rows)


def own_id(slot: int) -> int:
    """Return the code's uid in session `slot`, without a user namespace."""
    return FIRST_OUTER_ID + IDS_PER_SESSION * (slot % SLOTS) + 1


def enter_namespace(inside: int) -> None:
    """Make a user namespace of this process's own, whose only user is `inside`."""
    uid, gid = os.geteuid(), os.getegid()
    libc.unshare(libc.CLONE_NEWUSER)
    _write("self", "setgroups", "deny")
    _write("self", "gid_map", f"{inside} {gid} 1\n")
    _write("self", "uid_map", f"{inside} {uid} 1\n")


def become_rows(number: int) -> Rows:
    """Return the rows that take uid and gid `number`, after dropping supplementary groups."""
    yield call("setgroups", 0, 0)
    yield call("setresgid", number, number, number)
    yield call("setresuid", number, number, number)


def become(number: int) -> None:
    """Take uid and gid `number` by `become_rows`."""
    perform(become_rows(number))


def act_as_rows(number: int) -> Rows:
    """Return the rows that set uid and gid `number` for file access alone.

    The real and the saved uid stay, so that processes of that user can neither signal nor inspect
    this process: kill(2), ptrace(2).
    """
    yield call("setgroups", 0, 0)
    yield call("setresgid", -1, number, -1)
    yield call("setresuid", -1, number, -1)


def _write(pid: int | str, name: str, text: str) -> None:
    fd = os.open(f"/proc/{pid}/{name}", os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)
