"""Namespaces of a session: all that Linux has except time, which nothing here needs.

Covers: own process, network, ipc, host name, cgroup and mount views, and a user namespace whose
users have no rights outside. Does not cover: content of the mount view (mounts), outside users
(users), kernel bugs (seccomp narrows the reachable kernel).
"""

from __future__ import annotations

from ..native import libc
from ..native.libc import call
from ..native.steps import Rows

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
