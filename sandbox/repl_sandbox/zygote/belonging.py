"""Which processes of a session belong to which of its branches.

A process belongs to where it descends from, and a child whose parents are gone to the session
(setsid(2)) that it is in. One that left both cannot be told from others' orphans; it counts for the
session's first line, and ends with that or with the session.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from typing import NamedTuple

from ..jail import processes


class _Process(NamedTuple):
    parent: int
    session: int


def members(
    branches: Mapping[int, Collection[int]],
    branch: int | None,
    besides: Collection[int],
    *,
    everywhere: bool,
) -> list[int]:
    """The living processes of `branch`, or with None those of no branch.

    `branches`: the workers and copies of each, alive or not. `besides` are counted for none.
    `everywhere`: this process is the first of its pid namespace.
    """
    alive = _alive(everywhere)
    owners = {root: key for key, roots in branches.items() for root in roots}
    return [pid for pid in alive if pid not in besides and _owner(pid, alive, owners) == branch]


def _owner(pid: int, alive: Mapping[int, _Process], owners: Mapping[int, int]) -> int | None:
    seen = pid
    for _ in range(len(alive) + 1):
        process = alive.get(seen)
        if seen in owners:
            return owners[seen]
        if process is None:
            return None
        if process.session in owners:
            return owners[process.session]
        seen = process.parent
    return None


def _alive(everywhere: bool) -> dict[int, _Process]:
    me = os.getpid()
    if everywhere:
        pids = [int(name) for name in os.listdir("/proc") if name.isdecimal()]
    else:
        pids = list(processes.descendants(me))
    found = {}
    for pid in pids:
        try:
            with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
                # The name comes second, in parentheses, and may hold any byte.
                state, parent, _, session = file.read().rpartition(b") ")[2].split(None, 4)[:4]
        except (OSError, ValueError):
            continue
        if pid != me and state not in (b"Z", b"X"):
            found[pid] = _Process(int(parent), int(session))
    return found
