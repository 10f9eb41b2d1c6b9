"""Which processes of a session belong to which of its branches.

All descend from init's children. Of these it knows the workers and their copies; another one is an
orphan and belongs to the session (setsid(2)) that it is in. One that left that as well cannot be
told from others' orphans; it counts for the session's first line, and ends with that or with the
session.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping

from ..jail import processes

_LOOK_ONLY = os.WEXITED | os.WNOHANG | os.WNOWAIT
_STOPPED_ONLY = os.WSTOPPED | os.WNOHANG | os.WNOWAIT


def members(
    branches: Mapping[int, Collection[int]], branch: int | None, besides: Collection[int]
) -> list[int]:
    """The living children of this process that are of `branch`, and all below them.

    With None those of no branch. `branches`: the workers and copies of each, alive or not.
    `besides` are counted for none. No look at the processes of other branches is taken: there may
    be many.
    """
    owners = {root: key for key, roots in branches.items() for root in roots}
    return [
        pid
        for child in processes.children()
        if child not in besides and is_child(child) and _owner(child, owners) == branch
        for pid in processes.descendants(child)
    ]


def is_child(pid: int) -> bool:
    """Whether that is a living child of this process: its number cannot become another's.

    Where init has the rights of the host's user, nobody else may be signalled.
    """
    try:
        return pid > 0 and os.waitid(os.P_PID, pid, _LOOK_ONLY) is None
    except (ChildProcessError, OverflowError):
        return False


def is_stopped(child: int) -> bool:
    """Whether that child of this process is stopped, as by SIGSTOP."""
    try:
        return os.waitid(os.P_PID, child, _STOPPED_ONLY) is not None
    except ChildProcessError:
        return False


def _owner(child: int, owners: Mapping[int, int]) -> int | None:
    if child in owners:
        return owners[child]
    try:
        return owners.get(os.getsid(child))
    except ProcessLookupError:
        return None
