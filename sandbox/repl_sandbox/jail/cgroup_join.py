"""A session process's part in its cgroup: join it, and be the first that the kernel kills.

Covers: joining through descriptors that the host opened, so that no path of the hierarchy is
visible; a view of the hierarchy that begins at the session's cgroup; the victim when memory runs
out. Does not cover: limits and counts (cgroups), which are the host's.
"""

from __future__ import annotations

import os
from typing import Final

from ..native import libc
from ..native.libc import call
from ..native.steps import Rows
from .recipe import recipe_slots

# proc_pid_oom_score_adj(5), and its largest value, which outweighs any size.
_OOM_SCORE: Final = b"/proc/self/oom_score_adj"
_FIRST_TO_GO: Final = b"1000"


def join_rows(groups: int) -> Rows:
    """Return the rows that move this process, which has one thread, into the cgroups in the slots.

    Version 2 has none: the process was born into its cgroup.
    """
    for index in range(groups):
        yield call("write", recipe_slots.group(index), b"0", 1, least=1)


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
    yield call("openat", libc.AT_FDCWD, _OOM_SCORE, flags, keeps=recipe_slots.OPENED)
    yield call("write", recipe_slots.OPENED, _FIRST_TO_GO, len(_FIRST_TO_GO))
    yield call("close", recipe_slots.OPENED)
