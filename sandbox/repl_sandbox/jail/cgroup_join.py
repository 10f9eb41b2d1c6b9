"""What a session's processes do about their group: join it, and be the first to go.

Covers: joining through descriptors that the host opened, so that no path of the hierarchy is in
view; a view of the hierarchy that begins at the session's group; whom the kernel ends when memory
runs out. Does not cover: limits and counts (cgroups), which are the host's.
"""

from __future__ import annotations

import os
from typing import Final

from ..native import libc
from ..native.libc import call
from ..native.steps import Rows
from . import recipe_slots

# proc_pid_oom_score_adj(5), and the largest of what is written there, which outweighs any size.
_OOM_SCORE: Final = b"/proc/self/oom_score_adj"
_FIRST_TO_GO: Final = b"1000"


def join_rows(groups: int) -> Rows:
    """Move this process, which has one thread, into so many groups, whose slots are filled.

    On version 2 there is none: the process was born into its group.
    """
    for index in range(groups):
        yield call("write", recipe_slots.group(index), b"0", 1, least=1)


def close_view_rows() -> Rows:
    """Take a cgroup namespace: it begins at the group that this process is in.

    What is above it, the host's groups and the process id in their names, is then out of view.
    """
    yield call("unshare", libc.CLONE_NEWCGROUP)


def be_first_to_go_rows() -> Rows:
    """Have this process and all it starts ended before init when their group runs out of memory."""
    # The file belongs to nobody here while the process hides its memory; it does so again before
    # any code runs.
    yield call("prctl", libc.PR_SET_DUMPABLE, 1)
    how = os.O_WRONLY | os.O_CLOEXEC
    yield call("openat", libc.AT_FDCWD, _OOM_SCORE, how, keeps=recipe_slots.OPENED)
    yield call("write", recipe_slots.OPENED, _FIRST_TO_GO, len(_FIRST_TO_GO))
    yield call("close", recipe_slots.OPENED)
