"""Assigns the processes of a session to its branches.

All descend from init's children. Init knows the workers and their snapshots among these; another
child is an orphan and belongs to the session (setsid(2)) that it is in. An orphan that left that as
well cannot be assigned; it counts for the original branch, and ends with it or with the session.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping

from ..jail import processes

_EXITED = os.WEXITED | os.WNOHANG | os.WNOWAIT
_STOPPED = os.WSTOPPED | os.WNOHANG | os.WNOWAIT


def members(
    branches: Mapping[int, Collection[int]], branch: int | None, excluded: Collection[int]
) -> list[int]:
    """Return the living children of this process that are of `branch`, and their descendants.

    None: those of no branch. `branches`: the workers and snapshots of each, alive or not.
    `excluded`: children that belong to no branch. Processes of other branches are not read: there
    may be many.
    """
    owners = {root: key for key, roots in branches.items() for root in roots}
    return [
        pid
        for child in processes.children()
        if child not in excluded and is_child(child) and _owner(child, owners) == branch
        for pid in processes.descendants(child)
    ]


def is_child(pid: int) -> bool:
    """Return whether `pid` is a living child of this process: its number cannot be reused then.

    If init has the rights of the host's user, it must signal nothing else.
    """
    try:
        return pid > 0 and os.waitid(os.P_PID, pid, _EXITED) is None
    except (ChildProcessError, OverflowError):
        return False


def is_stopped(child: int) -> bool:
    """Return whether that child of this process is stopped, as by SIGSTOP."""
    try:
        return os.waitid(os.P_PID, child, _STOPPED) is not None
    except ChildProcessError:
        return False


def _owner(child: int, owners: Mapping[int, int]) -> int | None:
    if child in owners:
        return owners[child]
    try:
        return owners.get(os.getsid(child))
    except ProcessLookupError:
        return None
