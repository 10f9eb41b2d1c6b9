"""Which namespaces a session gets: all that Linux has but time, which nothing here needs.

Covers: own process, network, ipc, host name, cgroup and mount views, and a user namespace in which
the session's users mean nobody outside. Does not cover: what stands in the mount view (mounts),
who the users are outside (users), kernel bugs (seccomp narrows what can be reached).
"""

from __future__ import annotations

from ..native import libc
from ..native.libc import call
from ..native.steps import Rows

# user first in the list because it is what allows the others to an ordinary user.
SESSION: dict[str, int] = {
    "user": libc.CLONE_NEWUSER,
    "pid": libc.CLONE_NEWPID,
    "mnt": libc.CLONE_NEWNS,
    "net": libc.CLONE_NEWNET,
    "ipc": libc.CLONE_NEWIPC,
    "uts": libc.CLONE_NEWUTS,
    "cgroup": libc.CLONE_NEWCGROUP,
}

# Those that are made for each session with its first process; networks are used again.
FLAGS = sum(SESSION.values()) & ~libc.CLONE_NEWNET

_HOSTNAME = b"repl"


def set_hostname_rows() -> Rows:
    """Have a host name that says nothing about the host."""
    yield call("sethostname", _HOSTNAME, len(_HOSTNAME))
