"""Users of a session inside and outside its user namespace.

Inside, the session's init is uid 0 and its code is uid 1000. If root starts the sandbox, both are
outside uids of that session alone, without an account; if an ordinary user does, both are that
user. Outside, uid 0 is never among them.

Does not cover: capabilities (capabilities), which do not follow from the uid in a namespace.
"""

from __future__ import annotations

import os

from ..native import libc
from ..native.libc import call
from ..native.steps import Rows, perform

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
